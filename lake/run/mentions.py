"""Where a person is mentioned: in a text that has a value of theirs as a whole word, in a record that is about them.

A producer may write the same value in many ways: `{"customer": "J\\u00f6rg"}` is of Jörg. So texts are searched as they
are, and once more with the escapes of JSON decoded; and what a record says of its subject is compared as the contract
reads it, under each name of the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from lake.config import Settings
from lake.run.personal import BLANKED
from lake.store import delta, quarantine
from lake.store.beside import LAST_BATCH
from lake.store.contracts import Contract

SHORTEST: Final = 4
"""Shorter values are found anywhere by chance, so they are not searched for."""
ESCAPES: Final = re.compile(r'(?:\\(?:u[0-9a-fA-F]{4}|["\\/bfnrt]))+')


def pattern(values: Iterable[str]) -> str:
    """A regular expression, as RE2 and Python have it, that finds any of `values` as a whole word."""
    words = "|".join(re.escape(value) for value in sorted(values, key=lambda value: (-len(value), value)))
    return f"(?:^|[^0-9A-Za-z])(?:{words})(?:$|[^0-9A-Za-z])"


def decoded(text: str) -> Iterator[str]:
    """`text` as it is, then with the escapes of JSON decoded, and again as long as there are any: JSON within JSON."""
    yield text
    while (plain := ESCAPES.sub(lambda found: str(json.loads(f'"{found[0]}"')), text)) != text:
        yield (text := plain)


def quarantined(settings: Settings, contract: Contract, subject: str, values: Collection[str]) -> list[dict[str, Any]]:
    """The quarantined records that tell of a person, or have one of their `values`, and what to keep of their place.

    Rows of `_batch`, `_number`, `source`, the last empty where the very name of the file tells of them.
    """
    texts = ", ".join(f"coalesce({name}, '') AS {name}" for name in ("raw", "detail", "source"))
    path, tells = settings.quarantine_path(contract.name), _tells(contract, subject, values)
    word = _word(values)
    found = []
    for batch in quarantine.counts(settings, contract.name, upto=LAST_BATCH):
        for row in delta.rows(path, f"SELECT _batch, _number, {texts} FROM t WHERE _batch = $1", batch):
            raw, detail, source = row.pop("raw"), row.pop("detail"), row["source"]
            named = word(source)
            if named or tells(raw) or (detail != BLANKED and word(detail)):
                found.append({**row, "source": "" if named else source})
    return found


def _word(values: Collection[str]) -> Callable[[str], bool]:
    """Whether a text has one of `values`, of those that are long enough to be searched for."""
    longer = [value for value in values if len(value) >= SHORTEST]
    words = re.compile(pattern(longer)) if longer else None
    return lambda text: words is not None and any(words.search(each) for each in decoded(text))


def _tells(contract: Contract, subject: str, values: Collection[str]) -> Callable[[str], bool]:
    """Whether the text of a record is about a person, or has one of their `values`."""
    field = contract.field(contract.subject or "")
    names = {name.lower() for name in (*field.names, *field.path[-1:])}
    word, same = _word(values), _same(subject, number=field.type != "string")
    # What is no JSON, as half a record: its field, wherever it is.
    spelled = "|".join(re.escape(name) for name in sorted(names))
    broken = re.compile(f'"(?i:{spelled})"\\s*:\\s*"?{re.escape(subject)}"?\\s*(?:[,}}]|$)')
    return lambda raw: (
        word(raw) or any(map(same, _said(raw, names))) or any(broken.search(each) for each in decoded(raw))
    )


def _said(raw: str, names: Collection[str]) -> list[str]:
    """What a record says under any of `names`, however deep in it, as it is written there."""
    found: list[str] = []

    def members(pairs: list[tuple[str, Any]]) -> None:
        found.extend(str(value) for name, value in pairs if name.lower() in names and value is not None)

    try:
        json.loads(raw, object_pairs_hook=members, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return found
    return found


def _same(subject: str, *, number: bool) -> Callable[[str], bool]:
    """Whether a text says the subject: as a `number`, 7 and 7.0 are one."""
    if not number:
        return lambda text: text.strip() == subject.strip()
    return lambda text: _number(text) == _number(subject)


def _number(text: str) -> Decimal | str:
    try:
        return Decimal(text.strip())
    except InvalidOperation:
        return text.strip()
