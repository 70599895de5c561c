"""History: slowly changing dimensions of type 2, from changes or from full dumps.

A version is the interval [valid_from, valid_to) in which a key's tracked columns stay the same. The events of a key
are ordered by (`sequence`, log order). An instant is a value of the first sequence column, or with `dated` the greatest
value of that column up to the event:

1. of the events of one instant the last counts: no version has length zero;
2. an event opens a version if its tracked columns differ, null-safe, from those of the event before it;
3. a delete closes the version before it; further deletes change nothing, and an upsert opens a new version;
4. the columns that are not tracked are those of the newest event within the version.

Events without an instant are left out. The log keeps the inner events of a version: if an event of a key comes late,
the key is evaluated from the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from attrs import field, frozen
from attrs.converters import optional

from lake.errors import DeclarationError
from lake.kinds.columns import (
    AGAIN,
    AT,
    SIGN,
    as_sql,
    check_not_returned,
    digest,
    names,
    place,
    visible,
    with_stored_order,
)
from lake.kinds.deletes import GONE
from lake.kinds.kind import BEGINS, CONTINUES, DELETES, INTO, ROLE, SUPERSEDED, TIMELESS
from lake.kinds.snapshots import DumpedRows, only_events
from lake.lazy import DataFrame, F

VALID: Final = ("valid_from", "valid_to", "is_current", "version_id")
CLOSED: Final = "_closed_by_delete"  # state: true if a delete ended the version
INSTANT: Final = "_instant"  # the first sequence column's value
DATED: Final = "_dated"  # state, with `dated`: the instant of a version's newest event
SINCE: Final = "_since"  # the beginning of the version at an event


@frozen(kw_only=True)
class History(DumpedRows):
    """One row per `key` and version: the function's columns, then those of VALID.

    `valid_from` and `valid_to` have the type of `dated`, else of the first sequence column. `version_id` is a digest of
    key and `valid_from`.

    sequence: columns that order a key's events, most significant first; ties by log order
    dated: the column with the time of a change, if `sequence` begins with another, such as a place in a database's log
    track: columns whose change opens a version; by default all but key, sequence and `ignore`
    deletes: SQL over the function's rows, true of rows that delete their key
    truncate: SQL over the function's rows, true of broadcast events that delete every key
    former: {key column: SQL of its value before the change}; if it differs and is not null, the former key is deleted
    snapshots: rows are full dumps, named by the first sequence column. A key missing from a dump is deleted, but not by
        a dump with an outstanding refused record. A dump older than an earlier one is ignored
    marker: SQL over the function's rows, true of events that declare their dump complete. Then only such dumps count
    partition: columns such as a region; a dump is complete for one value of them

    Example:
        History("tailnum", sequence="departed_at", track=["carrier", "seats"])
        History("customer", sequence="changed_at", ignore="seen_at", deletes="op = 'd'", truncate="op = 't'")
        History("customer", sequence=("lsn", "ordinal"), dated="committed_at", former={"customer": "old_name"})
        History("product", sequence="taken_on", snapshots=True, marker="kind = 'complete'", partition="region")
    """

    name: ClassVar[str] = "History"
    version: ClassVar[int] = 1
    current: ClassVar[str | None] = "is_current"

    sequence: tuple[str, ...] = field(converter=names)
    dated: str | None = None
    track: tuple[str, ...] | None = field(converter=optional(names), default=None)
    ignore: tuple[str, ...] | None = field(converter=optional(names), default=None)

    @property
    def identity(self) -> tuple[str, ...]:
        return (*self.by, "valid_from")

    @property
    def digested(self) -> tuple[str, ...]:
        return (*self.by, self.dated or self.sequence[0])

    @property
    def current_identity(self) -> tuple[str, ...]:
        return self.by

    @property
    def meanings(self) -> Mapping[str, str]:
        since = (self.dated or self.sequence[0]).lstrip("_")
        return {
            "valid_from": f"when the version began, by {since}",
            "valid_to": "when it ended, not included; null while it lasts",
            "is_current": "whether it lasts",
            "version_id": "identifies the version for ever",
        }

    @property
    def invariants(self) -> Mapping[str, str]:
        by = ", ".join(f'"{column}"' for column in self.by)
        then = f"lead(valid_from) OVER (PARTITION BY {by} ORDER BY valid_from)"
        closed = f"valid_to IS NOT NULL AND NOT {CLOSED}"
        current = f"count(*) FILTER (WHERE is_current) OVER (PARTITION BY {by})"
        offending = {
            "versions_do_not_overlap": f"QUALIFY {then} < valid_to OR ({then} IS NOT NULL AND valid_to IS NULL)",
            "versions_have_length": "WHERE valid_from >= valid_to",
            "no_gap_unless_deleted": f"QUALIFY {closed} AND {then} IS DISTINCT FROM valid_to",
            "at_most_one_current_version": f"QUALIFY is_current AND {current} > 1",
            "current_versions_are_open": "WHERE is_current IS DISTINCT FROM (valid_to IS NULL)",
        }
        return {name: f"SELECT * FROM {{table}} {condition}" for name, condition in offending.items()}

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        return [() if self.snapshots else as_sql(*self.by, *self.sequence)]

    def requires(self, side: int = 0, /) -> dict[str, str]:
        others = dict.fromkeys(self.track or (), "track") | dict.fromkeys(self.ignore or (), "ignore")
        return others | dict.fromkeys(filter(None, [self.dated]), "dated") | super().requires(side)

    def prepare(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        check_not_returned(VALID, rows, self.name)
        return super().prepare(rows)

    def evaluate(self, rows: DataFrame) -> DataFrame:
        """State: the place of a version's newest event, whether a delete closed it, and with `dated` its instant."""
        if self.snapshots:
            events = self._events(self.differences(rows), gone=GONE)
            return self._versions(self._with_instants(events)).drop(AGAIN)
        events = self._events(rows.where(self.kept), gone=self.gone)
        if self.truncate:
            everyone = self._events(rows.where(self.truncate), gone="true").drop(*self.by)
            keys = events.select(*self.by).distinct()
            events = events.unionByName(keys.crossJoin(everyone.hint("broadcast")))
        return self._versions(self._with_instants(events).where(f"{INSTANT} is not null")).drop(AGAIN)

    def absorb(self, old: DataFrame, changes: DataFrame) -> DataFrame:
        """Continue a current version if all events of its key are at later instants than its newest event.

        Other keys are marked as AGAIN, but for new keys that no delete can concern.
        """
        news = self._events(changes.where(self.kept), gone=self.gone)
        instant = F.col(DATED if self.dated else f"{AT}.`{self.sequence[0]}`")
        stored = old.withColumns({INSTANT: instant, GONE: F.lit(False), SIGN: F.lit(1), SINCE: F.col("valid_from")})
        rows = self._with_instants(stored.unionByName(news, allowMissingColumns=True))
        over = f"over ({self._partition})"
        newest = f"max(if(is_current, {INSTANT}, null)) {over}"
        is_late = f"min(if(is_current is null, {INSTANT}, null)) {over} <= {newest}"
        if self.dated:
            is_late += f" or min(if(is_current is null, {AT}, null)) {over} <= max(if(is_current, {AT}, null)) {over}"
        may_be_deleted = f"{newest} is null" if self.deletes_by_key or self.truncate is not None else "false"
        again = f"min({SIGN}) {over} < 0 or coalesce({is_late}, false) or {may_be_deleted}"
        rows = rows.withColumn(AGAIN, F.expr(again)).where(f"{AGAIN} or {INSTANT} is not null")
        versions = self._versions(rows.where("coalesce(is_current, true)").drop(*VALID, CLOSED, DATED))
        return versions.unionByName(rows.where("not is_current").select(*versions.columns))

    def traced(self, rows: DataFrame, side: int = 0, /) -> DataFrame:
        """A delete belongs to the version that it closes. Dumps and truncates do not show in a key's own rows."""
        rows = only_events(rows)
        if self.snapshots or self.truncate:
            return super().traced(rows)
        over = f"over ({self._partition} order by {AT})"
        state = self._state(visible(rows.columns))
        # Before AT: it reads columns of the function, one of which may have that name.
        rows = rows.withColumn(INSTANT, F.expr(self._instant))
        steps = {
            AT: place(*self.sequence),
            INSTANT: self._running_max if self.dated else INSTANT,
            GONE: self.gone,
            "_counts": f"{INSTANT} is not null and not ({INSTANT} <=> lead({INSTANT}) {over})",
            "_state": f"if(_counts, {state}, null)",
            "_opens": f"_counts and not (_state <=> lag(_state) ignore nulls {over})",
            SINCE: f"max(if(_opens and not {GONE}, {INSTANT}, null)) over ({self._partition} order by {INSTANT})",
            ROLE: f"""case when {INSTANT} is null then '{TIMELESS}' when not _counts then '{SUPERSEDED}'
                when {GONE} then '{DELETES}' when _opens then '{BEGINS}' else '{CONTINUES}' end""",
        }
        for column, sql in steps.items():
            rows = rows.withColumn(column, F.expr(sql))
        return rows.withColumn(INTO, F.struct(*self.by, F.col(SINCE).alias("valid_from")))

    def _events(self, rows: DataFrame, *, gone: str) -> DataFrame:
        marks = [f"{place(*self.sequence)} as {AT}", f"{self._instant} as {INSTANT}", f"{gone} as {GONE}"]
        columns = [f"`{column}`" for column in visible(rows.columns)]
        timed = with_stored_order(rows).where(f"`{self.sequence[0]}` is not null")
        return timed.selectExpr(*columns, *marks, SIGN)

    def _with_instants(self, events: DataFrame) -> DataFrame:
        """Add instants, and SINCE, at which a version opened by the event begins.

        The instant is null if neither the event nor one before it is dated.
        """
        if self.dated:
            events = events.withColumn(INSTANT, F.expr(self._running_max))
        begun = f"coalesce({SINCE}, {INSTANT})" if SINCE in events.columns else INSTANT
        return events.withColumn(SINCE, F.expr(begun))

    def _versions(self, events: DataFrame) -> DataFrame:
        """Return the versions that `events` make by the rules of the module's docstring.

        An event that stands for a version of the table began it at SINCE.
        """
        columns = visible(events.columns)
        over = f"over ({self._partition} order by {AT})"
        state = self._state(columns)
        if AGAIN not in events.columns:
            events = events.withColumn(AGAIN, F.lit(False))
        rows = events.withColumn("_then", F.expr(f"lead({INSTANT}) {over}"))
        rows = rows.where(f"_then is null or _then <> {INSTANT}")
        rows = rows.withColumn("_opens", F.expr(f"not ({state} <=> lag({state}) {over})"))
        # Together: DuckDB sorts once. The event after the last one of a version opens the next.
        steps = {
            SINCE: f"max(if(_opens, {SINCE}, null)) {over}",
            "valid_to": f"lead({SINCE}) {over}",
            CLOSED: f"coalesce(lead({GONE}) {over}, false)",
            "_ends": f"coalesce(lead(_opens) {over}, true)",
        }
        rows = rows.withColumns({column: F.expr(sql) for column, sql in steps.items()}).where("_ends")
        versions = rows.where(f"not {GONE} or {AGAIN}").withColumnRenamed(SINCE, "valid_from")
        return versions.selectExpr(
            *[f"`{column}`" for column in columns],
            "valid_from",
            "valid_to",
            "valid_to is null as is_current",
            f"{digest(versions, (*self.by, 'valid_from'))} as version_id",
            AT,
            CLOSED,
            AGAIN,
            *([f"{INSTANT} as {DATED}"] if self.dated else []),
        )

    def _state(self, columns: Sequence[str]) -> str:
        """Return SQL of what opens a version if it changes: the mark of a delete and the tracked columns."""
        others = {*self.by, *self.sequence, self.dated, *(self.ignore or ())}
        tracked = [column for column in columns if column not in others] if self.track is None else self.track
        return f"struct({', '.join([GONE, *(f'if({GONE}, null, `{column}`)' for column in tracked)])})"

    @property
    def _instant(self) -> str:
        """SQL of an event's own time; null if it has no place in the sequence."""
        first = f"`{self.sequence[0]}`"
        return f"if({first} is null, null, `{self.dated}`)" if self.dated else first

    @property
    def _running_max(self) -> str:
        return f"max({INSTANT}) over ({self._partition} order by {AT} rows unbounded preceding)"

    def __attrs_post_init__(self) -> None:
        if not self.by:
            raise DeclarationError(
                "History needs a key", fix='name the columns that identify what has a history: History(key="…", …)'
            )
        if not self.sequence:
            raise DeclarationError(
                "History needs a sequence", fix="name the column that says from when a change is valid"
            )
        if self.track is not None and self.ignore is not None:
            raise DeclarationError(
                "track and ignore cannot be combined", fix="use only one of them: the other columns are the rest"
            )
        if self.dated and self.snapshots:
            raise DeclarationError("snapshots cannot have dated", fix="leave it out: the dump says when it was taken")
        for column in self.track or ():
            if column.startswith("_") or column in self.by:
                raise DeclarationError(
                    f"column {column!r} cannot be tracked", fix="track visible columns beside the key"
                )
        self.check_options()
