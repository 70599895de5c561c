"""Drift of a stream from its contract: unknown fields, and fields that vanished.

An optional field has vanished if all earlier records had it and none of a batch has. The log's newest commit holds the
state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from lake.contracts.contract import Contract
from lake.contracts.fields import Field
from lake.records.unknown_members import by_names, known_paths, masks, optional_fields, unknown_paths
from lake.store.log import LogHead
from lake.text import counted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

NAMES: Final = 20
"""Maximum number of unknown fields that are named, most frequent first."""
NAME_LENGTH: Final = 60
REPORTED: Final = frozenset({"report", "warn"})


@dataclass(frozen=True)
class Drift:
    """Drift up to a batch: `records` since batch `since` have unknown fields.

    `unknown` counts records by path, empty if names may be personal. All records have the fields `always`, some have
    `sometimes`; `vanished` maps the others to the first batch without them.
    """

    records: int = 0
    since: int = 0
    unknown: Mapping[str, int] = field(default_factory=dict)
    always: frozenset[str] = frozenset()
    sometimes: frozenset[str] = frozenset()
    vanished: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, head: LogHead, contract: Contract) -> Drift:
        """Return the log's drift, without fields that the contract now knows or lacks."""
        data: Mapping[str, Any] = head.position.data.get("drift", {})
        known = known_paths(contract.fields)
        optional = {field.name for field in optional_fields(contract)}
        counts = data.get("unknown", {})
        unknown = {name: count for name, count in counts.items() if name not in known}
        reported = contract.unknown in REPORTED and (bool(unknown) or not counts)
        return cls(
            data.get("records", 0) if reported else 0,
            data.get("since", 0) if reported else 0,
            unknown if reported else {},
            frozenset(data.get("always", ())) & optional,
            frozenset(data.get("sometimes", ())) & optional,
            {name: batch for name, batch in data.get("vanished", {}).items() if name in optional},
        )

    @property
    def as_json(self) -> dict[str, Any]:
        data = {
            "records": self.records,
            "since": self.since,
            "unknown": dict(self.unknown),
            "always": sorted(self.always),
            "sometimes": sorted(self.sometimes),
            "vanished": dict(self.vanished),
        }
        return {name: value for name, value in data.items() if value}

    def with_unknown(self, batch: int, records: int, names: Mapping[str, int]) -> Drift:
        if not records:
            return self
        sums = {name: self.unknown.get(name, 0) + names.get(name, 0) for name in {**self.unknown, **names}}
        most = sorted(sums, key=lambda name: (-sums[name], name))[:NAMES]
        unknown = {name: sums[name] for name in most}
        return replace(self, records=self.records + records, since=self.since or batch, unknown=unknown)

    def with_lacking(self, batch: int, fields: Iterable[str], some: set[str], every: set[str]) -> Drift:
        """Return the drift after a `batch`. Subsets of `fields`: `some` lack in some records, `every` in all."""
        always, sometimes, vanished = {*self.always}, {*self.sometimes}, dict(self.vanished)
        for name in fields:
            if name in every:
                if name in always:
                    always.remove(name)
                    vanished[name] = batch
            elif name in some:
                always.discard(name)
                vanished.pop(name, None)
                sometimes.add(name)
            elif name not in sometimes:
                vanished.pop(name, None)
                always.add(name)
        return replace(self, always=frozenset(always), sometimes=frozenset(sometimes), vanished=vanished)

    def lines(self, before: Drift | None = None) -> Iterator[str]:
        """Yield lines to report; with `before`, new ones only."""
        if self.records and (before is None or self.unknown.keys() - before.unknown.keys() or not before.records):
            names = ", ".join(f"{name} ({count})" for name, count in self.unknown.items())
            since = f"{counted(self.records, 'record')} since batch {self.since}"
            yield f"{since} had fields that the contract does not know{f': {names}' if names else ''}"
        for name, batch in self.vanished.items():
            if before is None or name not in before.vanished:
                yield f"no record since batch {batch} has {name}, which all had before"


def _names_of(fields: Iterable[Field], bits: int) -> set[str]:
    return {field.name for n, field in enumerate(fields) if bits >> n & 1}


def after(before: Drift, batch: int, contract: Contract, parsed: DataFrame, tally: pa.Table) -> Drift:
    """Return the drift after a batch of `parsed` records that has events."""
    import pyarrow.compute as pc

    extras = int(pc.sum(tally["extras"]).as_py() or 0) if contract.unknown in REPORTED else 0
    names = _unknown(parsed, contract) if extras and not contract.sealed else {}
    drift = before.with_unknown(batch, extras, names)
    for column, fields in masks(contract).items():
        some, every = 0, -1
        for row in tally.to_pylist():
            if row[f"bit_or{column}"] is not None:
                some, every = some | row[f"bit_or{column}"], every & row[f"bit_and{column}"]
        lacking = _names_of(fields, some), _names_of(fields, every)
        drift = drift.with_lacking(batch, [field.name for field in fields], *lacking)
    return drift


def _unknown(parsed: DataFrame, contract: Contract) -> dict[str, int]:
    from lake.store.spark_upcast import by_python  # with Arrow

    paths = by_python("array<string>", partial(unknown_paths, by_names(contract.fields)), ["_extra"])
    names = parsed.where("_reason IS NULL").select(paths.alias("paths")).selectExpr("explode(paths) AS name")
    short = names.selectExpr(f"left(name, {NAME_LENGTH}) AS name").groupBy("name").count()
    rows = short.orderBy("count", "name", ascending=[False, True]).limit(NAMES).toArrow()
    return {row["name"]: row["count"] for row in rows.to_pylist()}
