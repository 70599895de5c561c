"""Project with a table for each choice of options, all over the same two logs."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import lake
from lake import DeclarationError, Refusal
from lake.kinds.kind import Kind
from lake.kinds.measures.measure import Measure
from lake.kinds.windows.window import AlignedWindow
from tests import shop
from tests.options.events import EVENT, OTHER
from tests.options.options import OPTIONS, Chosen, classes, pairs

BOLD = 1
TYPES = {"at": "timestamp", "d": "date", "w": "timestamp_ntz"}
WINDOWS = ("Calendar", "Tumbling", "Hopping", "Cumulative", "Session", "Sliding")
RETRACT = ("Count", "CountIf", "Sum", "Avg", "Variance", "Stddev", "CountDistinct", "Quantile")
MATCH = ("FirstOf", "LastOf", "In")
SOME = 15
PER = ("CountDistinct", "ApproxDistinct", "Quantile")
MADE = "if(a is null, null, named_struct('u', 1, 'v', a)) as s"
PLAIN = [name for name in EVENT if name not in ("op", "was", "time")]
LOCAL = ["cast(at as date) as d", "cast(at as timestamp_ntz) as w"]
COLUMNS = {
    "log": [*PLAIN, *LOCAL, MADE, "_id as event", "op as _op", "was as _was"],
    "table": [*PLAIN, "d", "w", "s", "event", "op as _op", "was as _was"],
}
SECOND = ["k", "l", "if(rs is null, null, named_struct('u', 1, 'v', rs)) as s", "rat as at", "rs as seq", "rs as a"]
"""What the other log gives a Pattern over two."""
HEAD = """from datetime import timedelta

from pyspark.sql import functions as F
import lake
from lake import *
from lake import Refusal, log, table

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
"""
STATE = "n bigint, total decimal(20, 4), last array<int>, seen array<string>, one struct<u: int, v: int>"
FOLDS = f'''
STATE = "{STATE}"
SQL_STEP = {{
    "n": "coalesce(state.n, 0) + 1",
    "total": "coalesce(state.total + event.c, event.c, state.total)",
    "last": "event.tags",
    "seen": "concat(coalesce(state.seen, array()), array(event.b))",
    "one": "event.s",
}}


def python_step(state, event):
    if event["a"] is not None and event["a"] < 0:
        return Refusal("negative")
    total = event["c"] if state["total"] is None or event["c"] is None else state["total"] + event["c"]
    seen = [*(state["seen"] or []), event["b"]]
    return {{"n": (state["n"] or 0) + 1, "total": total, "last": event["tags"], "seen": seen, "one": event["s"]}}
'''
MATCHES = """

def is_first(event, matched):
    return event["a"] is None or event["a"] > sum(map(len, matched.values())) - 2

"""


@dataclass(frozen=True)
class Table:
    """Table of the matrix: its kind, the chosen options, and its inputs."""

    name: str
    kind: str
    options: Chosen
    inputs: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the file of its job."""
        imports = [f"from jobs.silver.{each} import {each}" for each in self.inputs if not each.startswith("log(")]
        declared = f"@table({call(self.kind, self.options)}, {', '.join(self.inputs)})"
        return "\n".join([HEAD, *imports, *_constants(self), "", declared, *self._function()])

    def _function(self) -> Iterator[str]:
        yield f"def {self.name}({', '.join('rows' if not n else f'rows{n}' for n in range(len(self.inputs)))}):"
        yield '    """What the options make."""'
        yield f"    return {_returned(self)}"


def call(name: str, options: Chosen) -> str:
    """Return the call of a class; a variadic argument (`*dimensions`) and those before it are positional."""
    by_place = ("id", "dimensions") if "dimensions" in options else ("alternatives",)
    arguments = (value if option in by_place else f"{option}={value}" for option, value in options.items())
    return f"{name}({', '.join(arguments)})"


@cache
def calls(name: str) -> tuple[str, ...]:
    """Return the class called with each choice of its options."""
    return tuple(
        call(name, chosen)
        for chosen in pairs(OPTIONS[name], lambda chosen: possible(call(name, chosen), environment()))
    )


@cache
def environment() -> dict[str, Any]:
    """Return the names in the head of a job."""
    names: dict[str, Any] = {name: getattr(lake, name) for name in lake.__all__}
    names |= {"HOUR": timedelta(hours=1), "DAY": timedelta(days=1), "Refusal": Refusal}
    del names["open"]
    exec(FOLDS + MATCHES, names)
    return names


@cache
def of_kinds() -> dict[str, Any]:
    """Return the additional names in the job of a kind."""
    return environment() | {name: eval(sets, environment()) for name, sets in measures().items()}


def possible(text: str, names: dict[str, Any]) -> bool:
    """Return whether a call is a valid declaration whose window fits its times."""
    try:
        made = eval(text, names)
        window = made.window if isinstance(made, lake.Aggregate) else made
        if isinstance(window, AlignedWindow):
            window.check(TYPES[window.on])
    except DeclarationError:
        return False
    return True


@cache
def measures() -> dict[str, str]:
    """Return the sets of measures as text: one for each class, those that subtract, those of a match; then all."""
    every = {f"{name.lower()}_{n}": text for name in OPTIONS for n, text in enumerate(_measures(name))}
    one = {name: text for name, text in every.items() if name.endswith("_0")}
    sets = {
        "ADDED": {name: text for name, text in one.items() if text.partition("(")[0] in RETRACT},
        "MEASURES": {name: text for name, text in one.items() if not text.startswith(MATCH)},
        "MATCHED": {name: text for name, text in one.items() if not text.startswith(PER)},
        "EVERY_MATCHED": {name: text for name, text in every.items() if not text.startswith(PER)},
    }
    others = [(name, text) for name, text in every.items() if not text.startswith(MATCH)]
    sets |= {f"SOME_{n // SOME}": dict(others[n : n + SOME]) for n in range(0, len(others), SOME)}
    return {name: _dict(of) for name, of in sets.items()}


def _measures(name: str) -> tuple[str, ...]:
    made = classes().get(name, object)
    measured = name == "In" or issubclass(made, Measure)
    return calls(name) if measured else ()


def _dict(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name!r}: {value}" for name, value in values.items()) + "}"


def tables(*, bold: bool = False, kinds: Collection[str] = ()) -> list[Table]:
    """Return the tables of the kinds (default: all); or the bold ones, the first of each, with fewest defaults."""
    of = kinds or [name for name, made in classes().items() if issubclass(made, Kind)]
    return [each for kind in of for each in (islice(_tables(kind), BOLD) if bold else _tables(kind))]


def _tables(kind: str) -> Iterator[Table]:
    options = dict(OPTIONS[kind]) | {"input": ("table", "log")}
    if kind == "Aggregate":
        options["window"] = ("None", *(calls(name)[0] for name in WINDOWS))
    if kind == "Enrich":
        each = calls("AsOf")
        options["dimensions"] = (*each, *(f"{a}, {b}" for a, b in pairwise(each)))
    if kind == "Pattern":
        options["input"] = ("table", "log", "logs")
        down, up = ([text for text in calls("Step") if name in text] for name in ("'down'", "'up'"))
        options["steps"] = (
            *(f"[{a}, {b}]" for a, b in zip(down, reversed(up), strict=False)),
            *(f"[Step('any', times='?'), {either}]" for either in calls("Either")),
            *(f"[Step('down', 'a > 0', times='+?'), Step('up', times='?'), {absent}]" for absent in calls("Absent")),
        )
    choices = pairs(options, lambda chosen: _fits(kind, chosen))
    if kind == "Aggregate":  # And every other window, one beside each of these choices
        others = [text for name in WINDOWS for text in calls(name)[1:]]
        choices += [
            chosen | {"window": text}
            for chosen, text in zip(cycle([each for each in choices if each["window"] != "None"]), others, strict=False)
        ]
        plain = {name: values[0] for name, values in options.items()}
        choices += [plain | {"measures": name} for name in measures() if name.startswith("SOME")]
    if kind == "Pattern":
        choices.append(choices[0] | {"measures": "EVERY_MATCHED"})
    for number, chosen in enumerate(choices):
        source = chosen.pop("input")
        inputs: tuple[str, ...] = ("current", "other") if source == "table" else ('log("events")', 'log("others")')
        both = kind in ("Enrich", "Join", "View") or source == "logs"
        if kind == "Enrich":
            inputs = (inputs[0], *[inputs[1]] * chosen["dimensions"].count("AsOf"))
        yield Table(f"{kind.lower()}_{number}", kind, chosen, inputs if both else inputs[:1])


def _fits(kind: str, chosen: Chosen) -> bool:
    options = {name: value for name, value in chosen.items() if name != "input"}
    if chosen["input"] == "table":
        timed = options.get("late") == "'drop'" or options.get("is_final") == "True"
        if timed:
            return False
    timed = options.get("within", "None") != "None" or options.get("is_final") == "True"
    if timed and options.get("sequence") == "'seq'":
        return False  # No event time
    text = call(kind, options)
    return possible(text, of_kinds()) and bool(eval(text, of_kinds()).identity)


def _constants(table: Table) -> Iterator[str]:
    if table.kind in ("Aggregate", "Pattern"):
        name = table.options["measures"]
        yield f"{name} = {measures()[name]}"
    if table.kind == "Fold":
        yield FOLDS
    if table.kind == "Pattern":
        yield MATCHES


def _returned(table: Table) -> str:
    """Return the columns that the job's function returns."""
    source = "log" if table.inputs[0].startswith("log(") else "table"
    made, event = COLUMNS[source][-4:-2]
    if table.kind == "Pattern" and len(table.inputs) == 2:
        return f"rows.selectExpr(*{COLUMNS[source]!r}), rows1.selectExpr(*{SECOND!r})"
    of = {"Join": _joined, "Enrich": _enriched, "View": _viewed}.get(table.kind)
    return of(table.options, made, event) if of else f"rows.selectExpr(*{COLUMNS[source]!r})"


def _joined(options: Chosen, made: str, event: str) -> str:
    by = "'l'" in options["key"]
    left = ["k", *(["l"] if by else []), event, "at", "a", made]
    right = ["k", "l" if by else "l as rl", "oid as revent", "rat", "rb"]
    return f"rows.selectExpr(*{left!r}), rows1.selectExpr(*{right!r})"


def _enriched(options: Chosen, made: str, event: str) -> str:
    sides = [f"rows.selectExpr(*{[*PLAIN, made, event]!r})"]
    versions = {"valid_from": "rat as valid_from", "valid_to": "rat + interval 3 days as valid_to", "rat": "rat"}
    for number, dimension in enumerate(options["dimensions"].split("AsOf")[1:], start=1):
        times = ["rat"] if "time='rat'" in dimension else ["valid_from", "valid_to"]
        times += ["valid_to"] if "until='valid_to'" in dimension and "valid_to" not in times else []
        own = ["k", *(["l"] if "'l'" in dimension else []), *(versions[name] for name in times), f"rb as rb{number}"]
        sides.append(f"rows{number}.selectExpr(*{own!r})")
    return ", ".join(sides)


def _viewed(options: Chosen, made: str, event: str) -> str:
    by = [name for name in ("k", "l") if f"'{name}'" in options["key"]]
    others = f"rows1.groupBy(*{by or ['k']!r}).agg(F.max('rb').alias('rb'))"
    rows = f"rows.selectExpr('k', 'l', {event!r}, {made!r})"
    if options["identity"] == "None":
        rows = f"rows.groupBy(*{by!r}).agg(F.count('*').alias('n'), F.max('c').alias('c'))"
    return f"{rows}.join({others}, {by or ['k']!r}, 'left')"


def write(folder: Path, some: list[Table], settings: str = "") -> Path:
    """Write the project of `some` tables to `folder`."""
    facts = {"events": {"broadcast": "op = 'truncate'"}, "others": {}}
    streams = [
        shop.contract(name, {field: shop.optional(kind) for field, kind in fields.items()}, time="time", **facts[name])
        for name, fields in (("events", EVENT), ("others", OTHER))
    ]
    used = {name for table in some for name in table.inputs}
    texts = {}
    sources = [
        Table("current", "Latest", {"key": "'id'"}, ('log("events")',)),
        Table("other", "Latest", {"key": "'oid'"}, ('log("others")',)),
    ]
    for table in [*(source for source in sources if source.name in used), *some]:
        text = table.text
        if table.name == "current":
            text = text.replace(" as _op", "").replace(" as _was", "")
        if table.name == "other":
            text = text.replace(_returned(table), "rows")
        texts[table.name] = text
    shop.declare(shop.empty(folder, settings), *streams, jobs=texts)
    return folder
