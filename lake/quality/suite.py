"""Quality files as data: `quality/<table>.json` says what a table is expected to be, and what to do where it is not.

    {
      "expectations": [
        {
          "type": "expect_column_values_to_be_between",
          "kwargs": {"column": "flights", "min_value": 1},
          "severity": "stop",
          "doc": "a row exists because somebody flew"
        }
      ]
    }

Types are those of Great Expectations, and those of `expectation_types.SINCE`, which look at what the last edition had.
`severity` is `stop` (the default: nothing that fails it is committed or published), `warn` (told and recorded) or
`park`: rows that fail it are not taken into the table but into `<table>__parked`, see `parking.py`.
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
from typing import Any, Final, Literal, NoReturn

from lake.config import Settings
from lake.contracts.avro_text import Twice, once
from lake.errors import DeclarationError, did_you_mean
from lake.quality import parking
from lake.quality.columns import Unsuitable
from lake.quality.expectation_types import Rule, known_types, rule_of
from lake.quality.meanings import MEETS, pattern_fault

Severity = Literal["stop", "warn", "park"]
SEVERITIES: Final = ("stop", "warn", "park")
WRITTEN: Final = 'write {"expectations": [{"type": "expect_…", "kwargs": {…}, "severity": "stop", "doc": "…"}]}'
MEANING: Final = "exact"
"""Which meaning expectations have: changed whenever a row may be judged otherwise than before."""
MEMBERS: Final = ("type", "kwargs", "severity", "doc")


@dataclass(frozen=True, eq=False)
class Expectation:
    """One expectation of a table; `where` is `quality/<table>.json:<line>`."""

    type: str
    kwargs: Mapping[str, Any]
    severity: Severity
    doc: str
    where: str

    @property
    def rule(self) -> Rule:
        return rule_of(self.type)

    @property
    def every_row(self) -> bool:
        """Whether one failing row fails it."""
        return self.rule.by_row and self.kwargs.get("mostly", 1) == 1

    @property
    def row_local(self) -> bool:
        """Whether it judges each row by itself; a share of rows (`mostly`) is a statement about the whole table."""
        return self.rule.row_local and self.every_row

    @cached_property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that it looks at, sorted; None for all of them."""
        if self.rule.domain == "Batch" and not self.rule.counts_rows:
            return None
        return tuple(sorted({*named_columns(self.kwargs), *_conditioned(self.kwargs.get("row_condition"))}))

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Raise what shows in the block that the arguments cannot be evaluated as a DeclarationError."""
        try:
            yield
        except Unsuitable as error:
            raise self._fault(str(error), error.fix) from None
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            what = f"its arguments have another form: {type(error).__name__} {error}"
            raise self._fault(what, "see docs.greatexpectations.io for the form of its arguments") from error

    def _fault(self, what: str, fix: str) -> DeclarationError:
        return DeclarationError(f"{self} cannot be evaluated: {what}", where=self.where, fix=fix)

    def __str__(self) -> str:
        about = ", ".join(named_columns(self.kwargs)) or ", ".join(f"{k} {v}" for k, v in self.kwargs.items())
        return f"{self.type}({about})"


@dataclass(frozen=True)
class Suite:
    """All expectations of one table; `file` is relative to the project. Those that park are no part of the gate."""

    table: str
    file: str
    expectations: tuple[Expectation, ...] = field(repr=False)
    parking: tuple[Expectation, ...] = field(default=(), repr=False)

    @cached_property
    def hash(self) -> str:
        """Stays the same for another order of lines, layout or `doc`. Rows that met another one are judged again."""
        content = sorted(
            json.dumps([e.type, e.kwargs, e.severity], sort_keys=True, default=str) for e in self.expectations
        )
        return hashlib.sha256("\n".join([MEANING, *content]).encode()).hexdigest()[:16]

    @property
    def row_local(self) -> tuple[Expectation, ...]:
        """Those that a row can fail by itself: they judge a diff before it is committed."""
        return tuple(expectation for expectation in self.expectations if expectation.row_local)

    @property
    def whole_table(self) -> tuple[Expectation, ...]:
        """Those that only the whole table can fail: they judge it before it is published."""
        return tuple(expectation for expectation in self.expectations if not expectation.row_local)

    def faults(self, columns: Collection[str]) -> Iterator[DeclarationError]:
        """Expectations of columns that the table, which has `columns`, does not have."""
        for expectation in self.expectations:
            for name in expectation.columns or ():
                if name not in columns:
                    yield DeclarationError(
                        f"{self.table}: {expectation.type}: no column {name!r}",
                        where=expectation.where,
                        fix=did_you_mean(name, columns),
                    )


def parks(settings: Settings, table: str) -> bool:
    """Whether an expectation of `table` may park rows; the file is not checked."""
    file = settings.path("quality") / f"{table}.json"
    try:
        return file.is_file() and b'"park"' in file.read_bytes()
    except OSError:
        return False


def load_suite(settings: Settings, table: str) -> Suite | None:
    """The suite of one table, None without a quality file. Raises DeclarationError with all its faults."""
    file = settings.path("quality") / f"{table}.json"
    return read(file) if file.is_file() else None


def read(file: Path) -> Suite:
    """The suite that a quality file declares. Raises DeclarationError with all its faults."""
    where = f"quality/{file.name}"
    try:
        text = file.read_text("utf-8")
        document = json.loads(text, object_pairs_hook=once, parse_constant=_no_number)
    except OSError as error:
        raise DeclarationError(f"the expectations cannot be read: {error.strerror}", where=where, fix=WRITTEN) from None
    except UnicodeDecodeError as error:
        raise DeclarationError(f"not UTF-8 at byte {error.start}", where=where, fix=WRITTEN) from None
    except json.JSONDecodeError as error:
        raise DeclarationError(f"not valid JSON: {error.msg}", where=f"{where}:{error.lineno}", fix=WRITTEN) from None
    except Twice as twice:
        raise DeclarationError(f"{twice} occurs twice", where=where, fix="keep only one of them") from None
    except RecursionError:
        raise DeclarationError("not valid JSON: nested too deeply", where=where, fix=WRITTEN) from None
    if not isinstance(document, dict) or not isinstance(document.get("expectations"), list):
        raise DeclarationError('not {"expectations": [...]}', where=where, fix=WRITTEN)
    faults = [
        DeclarationError(f"unknown member {name!r}", where=where, fix='known: "expectations"')
        for name in sorted(document.keys() - {"expectations"})
    ]
    expectations = []
    for line, value in _elements(text):
        wrong = list(_faults(value, f"{where}:{line}"))
        faults += wrong
        if not wrong:
            severity = value.get("severity", "stop")
            expectations.append(
                Expectation(value["type"], value.get("kwargs", {}), severity, value.get("doc", ""), f"{where}:{line}")
            )
    if faults:
        raise DeclarationError.all(faults)
    gate = tuple(expectation for expectation in expectations if expectation.severity != "park")
    return Suite(
        file.stem, where, gate, tuple(expectation for expectation in expectations if expectation.severity == "park")
    )


_ARRAY = re.compile(r'(?<!\\)"expectations"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")


def _elements(text: str) -> Iterator[tuple[int, Any]]:
    """(line, value) of each element of the array `expectations` in a valid document."""
    decoder, start = json.JSONDecoder(parse_float=_number), _ARRAY.search(text)
    at = start.end() if start else len(text)
    while (at := _end_of_gap(text, at)) < len(text) and text[at] != "]":
        value, end = decoder.raw_decode(text, at)
        yield text.count("\n", 0, at) + 1, value
        at = end


def _number(text: str) -> float | Decimal:
    """A number as it is written: a float only if its shortest form is the same number."""
    written = Decimal(text)
    return written if Decimal(repr(float(text))) != written else float(text)


def _no_number(text: str) -> NoReturn:
    raise json.JSONDecodeError(f"{text} is no number of JSON", text, 0)


def _end_of_gap(text: str, at: int) -> int:
    gap = _BETWEEN.match(text, at)
    return gap.end() if gap else at


def _faults(value: Any, where: str) -> Iterator[DeclarationError]:  # noqa: PLR0912  one branch a fault
    """What is wrong with one element, as far as its text shows."""

    def fault(what: str, fix: str = "") -> DeclarationError:
        return DeclarationError(what, where=where, fix=fix)

    if not isinstance(value, dict):
        yield fault(f"an expectation must be an object, found {json.dumps(value)}", f"members: {', '.join(MEMBERS)}")
        return
    for name in sorted(value.keys() - set(MEMBERS)):
        yield fault(f"unknown member {name!r}", did_you_mean(name, MEMBERS))
    if value.get("severity", "stop") not in SEVERITIES:
        yield fault(
            f"severity {value['severity']!r} is not one of {', '.join(SEVERITIES)}",
            "leave it out for stop, the default",
        )
    if not isinstance(value.get("doc", ""), str):
        yield fault(f"invalid doc: {json.dumps(value['doc'])}", "write text that says why it holds")
    if "type" not in value:
        yield fault("an expectation without a type", 'add "type": "expect_…"')
        return
    kwargs = value.get("kwargs", {})
    if not isinstance(kwargs, dict):
        yield fault(
            f"kwargs of {value['type']} must be an object, found {json.dumps(kwargs)}", 'write {"column": "…", …}'
        )
    elif str(value["type"]) not in known_types():
        yield fault(f"unknown expectation {value['type']!r}", did_you_mean(str(value["type"]), known_types()))
    elif refused := (rule := rule_of(value["type"])).refused:
        yield fault(f"{rule.type} {refused}", "choose an expectation about values, or leave it out")
    else:
        for name in sorted(kwargs.keys() - rule.arguments):
            yield fault(f"{rule.type} has no argument {name!r}", did_you_mean(name, rule.arguments))
        for name in sorted(rule.required - kwargs.keys()):
            yield fault(f"{rule.type} needs the argument {name!r}", f"arguments: {', '.join(sorted(rule.arguments))}")
        if value.get("severity") == "park" and (why := parking.refusal(rule.type, kwargs)):
            yield fault(f"{rule.type} {why}", f"expectations that can park: {', '.join(MEETS)}")
        if wrong := pattern_fault(kwargs):
            yield fault(f"{rule.type}: {wrong[0]}", wrong[1])
        for name in _no_bounds(kwargs) if rule.since else ():
            yield fault(
                f"{name} of {rule.type} is {json.dumps(kwargs[name])}", "use a number, 0 or more: 0.1 is a tenth"
            )
        if isinstance(kwargs.get("row_condition"), str):
            yield fault(
                f"{rule.type}: row_condition must not be text",
                'write {"type": "comparison", "column": {"name": "…"}, "operator": "==", "parameter": …}',
            )


def _no_bounds(kwargs: Mapping[str, Any]) -> list[str]:
    """The bounds of what may change since an edition that are none."""
    given = {name: kwargs[name] for name in ("share", "rows") if name in kwargs}
    return [n for n, v in given.items() if not isinstance(v, int | float | Decimal) or isinstance(v, bool) or v < 0]


def named_columns(kwargs: Mapping[str, Any]) -> list[str]:
    """The columns that arguments name, in their order."""
    single = [kwargs[name] for name in ("column", "column_A", "column_B") if name in kwargs]
    several = kwargs.get("column_list", ())
    return [str(name) for name in [*single, *(several if isinstance(several, list) else ())]]


def _conditioned(condition: Any) -> Iterable[str]:
    """The columns that a `row_condition` names, at any depth."""
    if not isinstance(condition, Mapping):
        return
    column = condition.get("column")
    if isinstance(column, Mapping):
        yield str(column.get("name"))
    for part in condition.get("conditions", ()):
        yield from _conditioned(part)
