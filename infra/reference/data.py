"""Reference of contracts and expectations."""

from __future__ import annotations

from collections.abc import Iterator

from lake import text
from lake.connectors import connectors
from lake.contracts import csv_options, options, written_form
from lake.contracts import fields as field_types
from lake.contracts.reasons import Reason
from lake.quality import expectation_types
from lake.quality.row_conditions import ROW_CONDITIONS
from lake.sources.declared import source_kind
from reference.words import said_of


def contracts() -> Iterator[str]:
    """The attributes of contracts and fields, the types, the reasons of refusals."""
    yield "# Contracts\n"
    yield (
        "`schemas/<stream>.avsc` is an Avro record, named as its file. [Declare a stream](../how-to/contracts.md) shows"
        " one, [Change a contract](../how-to/change-contracts.md) what may change in it.\n"
    )
    yield "## Attributes of `lake`\n\n| attribute | meaning |\n|---|---|"
    said = said_of("contract", options.FACTS)
    yield from (f"| `{name}` | {said[name]} |" for name in said)
    yield f'\nA duration is a number and one of {", ".join(text.UNITS)}, as `"90 minutes"`.\n'
    yield "## Attributes of a field\n"
    yield "Beside Avro's own `name`, `type`, `doc` and `default`:\n\n| attribute | meaning |\n|---|---|"
    said = said_of("field", field_types.ATTRIBUTES)
    yield from (f"| `{name}` | {said[name]} |" for name in said)
    yield "\n## Options of CSV\n"
    yield "The members of `csv`, each of them optional:\n\n| member | meaning |\n|---|---|"
    said = said_of("csv", csv_options.OPTIONS)
    yield from (f"| `{name}` | {said[name]} |" for name in said)
    yield "\nA name in the header that is no name of a field may be one of its `aliases`.\n"
    yield "## Formats of times\n"
    yield (
        "A letter twice, as in `dd`, is a number of two digits; once, of one or two. Text stands in quotes, as in "
        "`'T'`; what may be absent, in brackets, which do not nest. Months are in English.\n\n"
        "| letter | meaning |\n|---|---|"
    )
    said = said_of("format", written_form.LETTERS)
    yield from (f"| `{name}` | {said[name]} |" for name in said)
    yield "\n## Types\n\n| Avro | Spark SQL |\n|---|---|"
    yield from (f"| `{avro}` | `{spark}` |" for avro, spark in field_types.PRIMITIVES.items())
    yield "| `bytes` or `fixed`, logical `decimal` | `decimal(precision, scale)`, up to 38 digits |"
    yield from (f"| `{avro}`, logical `{name}` | `{spark}` |" for (avro, name), spark in field_types.LOGICAL.items())
    yield "| `array`, `map`, `record` | `array`, `map<string, …>`, `struct` |\n"
    yield (
        'A field that may be null is `["null", type]`. Other unions are refused. Instants are kept in UTC to the '
        "microsecond, decimals with every digit.\n"
    )
    yield "## Encodings of an envelope\n\n| type | `encoding` |\n|---|---|"
    for kind, known in field_types.ENCODINGS.items():
        yield f"| `{kind}` | {', '.join(f'`{each}`' for each in known)} |"
    roots = ", ".join(f"`{each}`" for each in sorted(options.ENVELOPES["debezium"]))
    yield f"\nWith an envelope, `from` begins with one of {roots}.\n"
    yield "## Facts of sources\n"
    yield (
        "The field of a contract without an envelope may take a fact by `from`. `NAME` stands for any name. "
        "[Other connectors](../how-to/write-a-source.md) declare their own.\n\n"
        "| `from` | type | meaning |\n|---|---|---|"
    )
    facts = (fact for kind in connectors("lake.sources") for fact in source_kind(kind, "").facts)
    yield from (f"| `{fact.name}` | `{fact.type}` | {fact.meaning} |" for fact in facts)
    yield "\n## Why a record is rejected\n"
    yield "`lake quarantine counts` names the reason, the dead letter queue `lake quarantine list` the detail.\n"
    yield "| reason | meaning |\n|---|---|"
    said = said_of("reasons", [str(each) for each in Reason])
    yield from (f"| `{name}` | {said[name]} |" for name in said)


def expectations() -> Iterator[str]:
    """Every type of expectation: what it looks at, whether it parks, its arguments."""
    yield "# Expectations\n"
    yield (
        "Types that `quality/<table>.json` may use, from the schemas that Great Expectations ships, and three of our "
        "own. [Quality gates](../how-to/quality.md) shows a file. *Row*: every change is judged before it is "
        "committed. *Table*: the table is judged before it is published. *Edition*: so it is, beside the last edition. "
        "*Parks*: may have the severity `park`.\n"
    )
    yield "| type | looks at | parks | arguments |\n|---|---|---|---|"
    for name in sorted(expectation_types.known_types()):
        rule = expectation_types.rule_of(name)
        if rule.unsupported:
            continue
        scope = "edition" if rule.compares_editions else "row" if rule.is_row_local else "table"
        shown = ", ".join(f"**`{each}`**" if each in rule.required else f"`{each}`" for each in sorted(rule.arguments))
        yield f"| `{name}` | {scope} | {'yes' if name in ROW_CONDITIONS else ''} | {shown} |"
    yield "\nArguments in bold are required. Types that cannot be used, and why:\n"
    for name in sorted(expectation_types.known_types()):
        if refused := expectation_types.rule_of(name).unsupported:
            yield f"- `{name}` {refused}"
