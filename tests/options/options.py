"""Options of every kind, window, measure and step, with values as written in a job. The first value of an option is its
default; a value is Python source over the columns that `project` makes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

import lake
from lake.kinds.kind import Kind
from lake.kinds.measures.measure import Measure
from lake.kinds.windows.window import Window

Chosen = dict[str, str]

OF = ("'a'", "'c'", "'a + 0BD'")
OF_ALL = ("'a'", "'c'", "'b'", "'at'", "'s'", "'tags'")
WHERE = ("''", "'a > 0'")
ORDER = ("'seq'", "('at', 'b')")
TRUNCATES, DELETES = '''"_op = 'truncate'"''', '''"_op = 'delete'"'''
ZONES = ("'UTC'", "'America/New_York'", "'Pacific/Apia'")
TIMES = ("'at'", "'d'", "'w'")
KEYS = ("'k'", "('k', 'l')", "'s'")

OPTIONS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "Count": {},
    "CountIf": {"condition": ("'a > 0'",)},
    "Sum": {"of": OF, "where": WHERE},
    "Avg": {"of": OF, "where": WHERE, "scale": ("6", "0", "16")},
    "Min": {"of": OF_ALL, "where": WHERE},
    "Max": {"of": OF_ALL, "where": WHERE},
    "FirstValue": {"of": OF_ALL, "where": WHERE, "by": ORDER},
    "LastValue": {"of": OF_ALL, "where": WHERE, "by": ORDER},
    "Variance": {"of": OF, "where": WHERE, "scale": ("6", "0"), "population": ("False", "True")},
    "Stddev": {"of": OF, "where": WHERE, "scale": ("6", "0"), "population": ("False", "True")},
    "CountDistinct": {"of": OF_ALL, "where": WHERE},
    "ApproxDistinct": {"of": OF_ALL, "where": WHERE, "precision": ("12", "4")},
    "Quantile": {
        "of": ("'a'", "'c'", "'x'"),
        "where": WHERE,
        "q": ("0.5", "(0.0, 0.9, 1.0)"),
        "error": ("0.01", "0.2"),
    },
    "FirstOf": {"of": OF_ALL, "where": WHERE},
    "LastOf": {"of": OF_ALL, "where": WHERE},
    "In": {"step": ("'down'", "'up'"), "measure": ("Count()", "Sum('a')", "LastOf('s')", "Min('at')")},
    "Calendar": {
        "unit": ("'day'", "'week'", "'month'", "'quarter'", "'year'"),
        "on": TIMES,
        "zone": (*ZONES, "None"),
        "name": ("''", "'period'"),
    },
    "Tumbling": {
        "length": ("HOUR", "DAY", "2 * DAY"),
        "on": TIMES,
        "zone": (*ZONES, "None"),
        "offset": ("0 * HOUR", "HOUR / 4"),
    },
    "Hopping": {
        "length": ("2 * DAY", "6 * DAY"),
        "every": ("DAY", "2 * DAY", "6 * HOUR"),
        "on": TIMES,
        "zone": (*ZONES, "None"),
        "offset": ("0 * HOUR", "HOUR / 4"),
    },
    "Cumulative": {
        "length": ("2 * DAY", "DAY"),
        "step": ("DAY", "6 * HOUR"),
        "on": TIMES,
        "zone": (*ZONES, "None"),
        "offset": ("0 * HOUR", "HOUR / 4"),
    },
    "Session": {"gap": ("HOUR", "DAY"), "on": TIMES},
    "Sliding": {"length": ("DAY",), "on": TIMES, "id": ("'event'", "('event', 'b')")},
    "Step": {
        "name": ("'down'", "'up'"),
        "condition": ("''", "'a <= prev.a'", "'a > 0'", "is_first"),
        "times": ("1", "(1, 2)", "'?'", "'+'", "'*'", "'{1,}'", "'+?'"),
    },
    "Absent": {"condition": ("''", "'a > 1'", "'a is null'"), "within": ("HOUR", "2 * DAY")},
    "Either": {
        "alternatives": (
            "Step('down', 'a > 0'), Step('up', 'a <= prev.a')",
            "[Step('down', is_first), Step('x', times='?')], Step('up', times='+')",
            "Either(Step('up', 'a > 0', times=2), [Step('down', 'a <= prev.a'), Step('y')]), Step('z', 'a is null')",
        ),
    },
    "AsOf": {
        "on": ("'k'", "('k', 'l')"),
        "time": ("'valid_from'", "'rat'"),
        "until": ("None", "'valid_to'"),
        "tolerance": ("None", "DAY"),
    },
    "Latest": {
        "key": KEYS,
        "sequence": ("()", "'seq'", "('at', 'seq')"),
        "deletes": ("None", DELETES),
        "truncate": ("None", TRUNCATES),
        "partial": ("False", "True", "'s'", "('a', 'tags')"),
        "groups": ("{}", "{'g': ('b', 'c'), 'h': 'x'}"),
        "former": ("None", "{'k': '_was'}"),
        "snapshots": ("False", "True"),
        "marker": ("None", TRUNCATES),
        "partition": ("()", "'a'"),
    },
    "First": {
        "key": KEYS,
        "sequence": ("()", "'seq'", "('at', 'seq')"),
        "deletes": ("None", DELETES),
        "truncate": ("None", TRUNCATES),
    },
    "History": {
        "key": KEYS,
        "sequence": ("'at'", "'seq'", "('at', 'seq')"),
        "dated": ("None", "'seq'", "'at'"),
        "track": ("None", "('a', 's')"),
        "ignore": ("None", "('b', 'tags', 'event')"),
        "deletes": ("None", DELETES),
        "truncate": ("None", TRUNCATES),
        "former": ("None", "{'k': '_was'}"),
        "snapshots": ("False", "True"),
        "marker": ("None", TRUNCATES),
        "partition": ("()", "'a'"),
    },
    "Aggregate": {
        "key": ("'k'", "('k', 'l')", "'s'", "()"),
        "measures": ("ADDED", "MEASURES"),  # See `measures`
        "window": ("None",),  # And those of `windows`
        "late": ("'correct'", "'drop'"),
        "lateness": ("0 * HOUR", "HOUR"),
        "is_final": ("False", "True"),
    },
    "Fold": {
        "key": KEYS,
        "state": ("STATE",),
        "step": ("SQL_STEP", "python_step"),
        "sequence": ("()", "'seq'", "('at', 'seq')"),
        "start": ("None", "{'n': 0, 'seen': []}"),
        "refuse": ("None", "\"if(event.a < 0, 'negative', null)\""),
        "version": ("1", "2"),
        "rows": ("'state'", "'refusals'"),
        "id": ("()", "'event'"),
    },
    "Enrich": {
        "id": ("'event'", "('k', 'id')"),
        "dimensions": (),  # Those of AsOf
        "time": ("'at'",),
        "how": ("'left'", "'inner'"),
        "lateness": ("0 * HOUR", "HOUR"),
        "is_final": ("False", "True"),
    },
    "Join": {
        "key": ("'k'", "('k', 'l')"),
        "left": ("()", "'event'", "('event', 'a')"),
        "right": ("()", "'revent'"),
        "how": ("'inner'", "'left'", "'right'", "'full'"),
        "within": ("None", "DAY", "(HOUR, 2 * DAY)"),
        "times": ("None", "('at', 'rat')"),
        "lateness": ("0 * HOUR", "HOUR"),
        "is_final": ("False", "True"),
    },
    "Pattern": {
        "key": KEYS,
        "sequence": ("'at'", "('at', 'seq')", "'seq'"),
        "steps": (),  # Those of Step, Either and Absent
        "measures": ("MATCHED",),
        "skip": ("'past last'", "'to next'"),
        "within": ("None", "2 * DAY"),
        "lateness": ("0 * HOUR", "HOUR"),
        "is_final": ("False", "True"),
    },
    "View": {
        "key": ("'k'", "('k', 'l')", "()"),
        "identity": ("None", "('k', 'l', 'event')"),
        "on": ("{}", "{'others': {'k': 'k'}}"),
        "recursive": ("False", "True"),
    },
}


def classes() -> dict[str, type]:
    """Return the classes of declarations: {name: class}."""
    told = {name: getattr(lake, name) for name in lake.__all__}
    parts = ("Absent", "AsOf", "Either", "In", "Step")
    return {
        name: each
        for name, each in told.items()
        if isinstance(each, type) and (issubclass(each, Kind | Measure | Window) or name in parts)
    }


def parameters(made: type) -> set[str]:
    """Return the options of a class, including the name of a variadic one (`*dimensions`)."""
    return set(inspect.signature(made).parameters)


def pairs(options: Mapping[str, Sequence[str]], possible: Callable[[Chosen], bool]) -> list[Chosen]:
    """Return choices of a value for each option that cover every possible pair of two options' values. Choices that
    differ most from the defaults come first.
    """
    every = [dict(zip(options, values, strict=True)) for values in product(*options.values())]
    every = sorted(every, key=lambda each: -sum(each[name] != values[0] for name, values in options.items()))
    having = [(each, set(combinations(each.items(), min(2, len(options))))) for each in every if possible(each)]
    wanted = set().union(*(pairs for _, pairs in having))
    chosen = []
    while wanted:
        best, pairs = max(having, key=lambda each: len(wanted & each[1]))
        chosen.append(best)
        wanted -= pairs
    return chosen
