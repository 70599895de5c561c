"""Quality files: `quality/<table>.json` declares expectations of a table, and the reaction to a failure (EXAMPLE).

Types are those of Great Expectations, and EDITION_TYPES of `expectation_types`, which compare with the last edition.
`severity` is `stop` (default: a failure prevents commit or publication), `warn` (reported and recorded) or `park`:
failing rows go to `<table>__parked` instead of the table, see `parking.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from lake.config import Settings
from lake.contracts.declared_text import declared_text, decoder, json_text, parse_json
from lake.errors import DeclarationError, did_you_mean
from lake.lazy import pa
from lake.quality import parking
from lake.quality.columns import UnsuitableExpectation
from lake.quality.expectation_types import ExpectationRule, known_types, rule_of
from lake.quality.row_conditions import (
    ROW_CONDITIONS,
    ExpectationTerms,
    expectation_columns,
    failure_sql,
    pattern_fault,
)

Severity = Literal["stop", "warn", "park"]
SEVERITIES: Final = ("stop", "warn", "park")
EXAMPLE: Final = 'write {"expectations": [{"type": "expect_…", "kwargs": {…}, "severity": "stop", "doc": "…"}]}'
SEMANTICS: Final = "exact"
"""Version of the semantics of expectations: change it if a row may be judged differently."""
MEMBERS: Final = ("type", "kwargs", "severity", "doc")


@dataclass(frozen=True, eq=False)
class Expectation:
    """`where` is `quality/<table>.json:<line>`."""

    type: str
    kwargs: Mapping[str, Any]
    severity: Severity
    doc: str
    where: str

    @property
    def rule(self) -> ExpectationRule:
        return rule_of(self.type)

    @property
    def allows_no_failure(self) -> bool:
        return self.rule.is_by_row and self.kwargs.get("mostly", 1) == 1

    @property
    def is_row_local(self) -> bool:
        """True if a diff can be judged alone; a share (`mostly`) concerns the whole table."""
        return self.rule.is_row_local and self.allows_no_failure

    @cached_property
    def columns(self) -> tuple[str, ...] | None:
        if self.rule.domain == "Batch" and not self.rule.counts_only_rows:
            return None
        return tuple(sorted({*named_columns(self.kwargs), *_condition_columns(self.kwargs.get("row_condition"))}))

    def failure_sql(self, schema: pa.Schema, zone: str | None) -> str:
        """Return the SQL condition of failing rows of `schema`, whose times are in `zone`. Raises DeclarationError."""
        with self.convert_errors():
            return failure_sql(self.type, ExpectationTerms(self.kwargs, expectation_columns(schema, zone)))

    @contextmanager
    def convert_errors(self) -> Iterator[None]:
        try:
            yield
        except UnsuitableExpectation as error:
            raise self._fault(str(error), error.fix) from None
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            what = f"its arguments have another form: {type(error).__name__} {error}"
            raise self._fault(what, "see docs.greatexpectations.io for the form of its arguments") from error

    def _fault(self, what: str, fix: str) -> DeclarationError:
        return DeclarationError(f"{self} cannot be evaluated: {what}", where=self.where, fix=fix)

    def __str__(self) -> str:
        about = ", ".join(named_columns(self.kwargs)) or ", ".join(f"{k} {v}" for k, v in self.kwargs.items())
        return f"{self.type}({about})"


@dataclass(frozen=True, eq=False)
class Suite:
    """Expectations of one table. Those of `parking` are not part of the gate, and do not make suites differ."""

    table: str
    expectations: tuple[Expectation, ...] = field(repr=False)
    parking: tuple[Expectation, ...] = field(default=(), repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Suite) and (self.table, self.hash) == (other.table, other.hash)

    def __hash__(self) -> int:
        return hash(self.hash)

    @cached_property
    def hash(self) -> str:
        """Hash without order, layout and `doc`. Rows that passed another suite are judged again."""
        content = sorted(
            json.dumps([e.type, e.kwargs, e.severity], sort_keys=True, default=str) for e in self.expectations
        )
        return hashlib.sha256("\n".join([SEMANTICS, *content]).encode()).hexdigest()[:16]

    @property
    def row_local(self) -> tuple[Expectation, ...]:
        return tuple(expectation for expectation in self.expectations if expectation.is_row_local)

    @property
    def whole_table(self) -> tuple[Expectation, ...]:
        return tuple(expectation for expectation in self.expectations if not expectation.is_row_local)

    def faults(self, columns: Collection[str]) -> Iterator[DeclarationError]:
        for expectation in self.expectations:
            for name in expectation.columns or ():
                if name not in columns:
                    yield DeclarationError(
                        f"{self.table}: {expectation.type}: no column {name!r}",
                        where=expectation.where,
                        fix=did_you_mean(name, columns),
                    )


def has_parking(settings: Settings, table: str) -> bool:
    """Return whether an expectation may park, without validating the file. An escape may stand for a letter of it."""
    file = settings.path("quality") / f"{table}.json"
    try:
        content = file.read_bytes() if file.is_file() else b""
    except OSError:
        return False
    return b'"park"' in content or b"\\u" in content


def load_suite(settings: Settings, table: str) -> Suite | None:
    """Return a table's suite, if any. Raises DeclarationError with all faults."""
    file = settings.path("quality") / f"{table}.json"
    return read_suite(file) if file.is_file() else None


def read_suite(file: Path) -> Suite:
    where = f"quality/{file.name}"
    text = declared_text(file, "the expectations", where=where, fix=EXAMPLE)
    document = parse_json(text, where=where, fix=EXAMPLE)
    if not isinstance(document, dict) or not isinstance(document.get("expectations"), list):
        raise DeclarationError('not {"expectations": [...]}', where=where, fix=EXAMPLE)
    unknown = sorted(document.keys() - {"expectations"})
    DeclarationError.raise_any(((f"unknown member {name!r}", 'known: "expectations"') for name in unknown), where)
    faults, expectations = list[DeclarationError](), list[Expectation]()
    for line, value in _elements_with_lines(text):
        wrong = [DeclarationError(what, where=f"{where}:{line}", fix=fix) for what, fix in _element_faults(value)]
        faults += wrong
        if not wrong:
            severity = value.get("severity", "stop")
            expectations.append(
                Expectation(value["type"], value.get("kwargs", {}), severity, value.get("doc", ""), f"{where}:{line}")
            )
    DeclarationError.raise_any(faults)
    parked = tuple(expectation for expectation in expectations if expectation.severity == "park")
    return Suite(file.stem, tuple(e for e in expectations if e not in parked), parked)


_GAP = re.compile(r"[\s,]*")


def _elements_with_lines(text: str) -> Iterator[tuple[int, Any]]:
    """Yield the elements of the list in an object of one member, each with its line."""
    at = text.index("[", text.index(":")) + 1
    while text[at := _end_of_gap(text, at)] != "]":
        value, end = decoder().raw_decode(text, at)
        yield text.count("\n", 0, at) + 1, value
        at = end


def _end_of_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at


def _element_faults(value: Any) -> Iterator[tuple[str, str]]:
    """Yield (what, fix)."""
    if not isinstance(value, dict):
        yield f"an expectation must be an object, found {json_text(value)}", f"members: {', '.join(MEMBERS)}"
        return
    for name in sorted(value.keys() - set(MEMBERS)):
        yield f"unknown member {name!r}", did_you_mean(name, MEMBERS)
    if value.get("severity", "stop") not in SEVERITIES:
        what = f"severity {value['severity']!r} is not one of {', '.join(SEVERITIES)}"
        yield what, "leave it out for stop, the default"
    if not isinstance(value.get("doc", ""), str):
        yield f"invalid doc: {json_text(value['doc'])}", "write text that says why it holds"
    if "type" not in value:
        yield "an expectation without a type", 'add "type": "expect_…"'
        return
    kwargs = value.get("kwargs", {})
    if not isinstance(kwargs, dict):
        what = f"kwargs of {value['type']} must be an object, found {json_text(kwargs)}"
        yield what, 'write {"column": "…", …}'
    elif str(value["type"]) not in known_types():
        yield f"unknown expectation {value['type']!r}", did_you_mean(str(value["type"]), known_types())
    elif unsupported := (rule := rule_of(value["type"])).unsupported:
        yield f"{rule.type} {unsupported}", "choose an expectation about values, or leave it out"
    else:
        yield from _argument_faults(rule, kwargs, parks=value.get("severity") == "park")


def _argument_faults(rule: ExpectationRule, kwargs: Mapping[str, Any], *, parks: bool) -> Iterator[tuple[str, str]]:
    for name in sorted(kwargs.keys() - rule.arguments):
        yield f"{rule.type} has no argument {name!r}", did_you_mean(name, rule.arguments)
    for name in sorted(rule.required - kwargs.keys()):
        yield f"{rule.type} needs the argument {name!r}", f"arguments: {', '.join(sorted(rule.arguments))}"
    if parks and (why := parking.parking_fault(rule.type, kwargs)):
        yield f"{rule.type} {why}", f"expectations that can park: {', '.join(ROW_CONDITIONS)}"
    if wrong := pattern_fault(kwargs):
        yield f"{rule.type}: {wrong[0]}", wrong[1]
    for name in _invalid_bounds(kwargs) if rule.compares_editions else ():
        yield f"{name} of {rule.type} is {json_text(kwargs[name])}", "use a number, 0 or more: 0.1 is a tenth"
    if isinstance(kwargs.get("row_condition"), str):
        fix = 'write {"type": "comparison", "column": {"name": "…"}, "operator": "==", "parameter": …}'
        yield f"{rule.type}: row_condition must not be text", fix


def _invalid_bounds(kwargs: Mapping[str, Any]) -> list[str]:
    bounds = {name: kwargs[name] for name in ("share", "rows") if name in kwargs}
    return [n for n, v in bounds.items() if not isinstance(v, int | float | Decimal) or isinstance(v, bool) or v < 0]


def named_columns(kwargs: Mapping[str, Any]) -> list[str]:
    single = [kwargs[name] for name in ("column", "column_A", "column_B") if name in kwargs]
    several = kwargs.get("column_list", ())
    return [str(name) for name in [*single, *(several if isinstance(several, list) else ())]]


def _condition_columns(condition: Any) -> Iterable[str]:
    if not isinstance(condition, Mapping):
        return
    column = condition.get("column")
    if isinstance(column, Mapping):
        yield str(column.get("name"))
    parts = condition.get("conditions")
    for part in parts if isinstance(parts, list) else ():
        yield from _condition_columns(part)
