"""Read your own writes: wait until readers see the batch of a token, such as `flights@12`.

A record acknowledged by `lake serve http` has a token `flights@web:42:0`: source, group, ordinal.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.contracts.declared_files import sources
from lake.errors import DeclarationError, Unavailable, did_you_mean
from lake.store import delta
from lake.store.ledger import checks, cuts, editions
from lake.store.ledger.editions import Edition
from lake.store.locks import activity
from lake.store.log import Log
from lake.store.log_head import GENERATION, by_source
from lake.store.warehouse import Warehouse

POLL_SECONDS: Final = 0.2
FIX: Final = "write stream@batch, such as flights@12, as lake append prints it"


@dataclass(frozen=True)
class BatchToken:
    """Batch of a stream; while that is unknown, the record of a `group` of a `source` that has this `text`."""

    stream: str
    batch: int | None = None
    source: str = ""
    group: int = 0
    text: str = ""

    def __str__(self) -> str:
        return self.text if self.batch is None else f"{self.stream}@{self.batch}"

    def is_within(self, batches: Mapping[str, int]) -> bool:
        return self.batch is not None and batches.get(self.stream, 0) >= self.batch

    def resolve(self, settings: Settings) -> BatchToken:
        """Return the token with its batch once known; a group lost with its folder never is."""
        if self.batch is not None:
            return self
        log, batch = Log(settings, self.stream), 0
        for position in delta.positions(log.path, log.app) if delta.exists(log.path) else ():
            newest = by_source(position.data).get(self.source)
            if newest is None or newest.progress["upto"] < self.group:
                break
            if newest.progress["upto"] // GENERATION == self.group // GENERATION:
                batch = newest.batch
        return BatchToken(self.stream, batch) if batch else self


def parse_tokens(settings: Settings, texts: Iterable[str]) -> list[BatchToken]:
    """Return the distinct tokens. Raises DeclarationError if one is invalid, or its batch does not exist."""
    tokens = list[BatchToken]()
    for text in dict.fromkeys(texts):
        if posted := re.fullmatch(r"([^@]+)@([a-z][a-z0-9_]*):([0-9]{1,18}):[0-9]{1,18}", text):
            stream = load_contract(settings, posted[1]).name
            _check_source(settings, stream, posted[2])
            tokens.append(BatchToken(stream, None, posted[2], int(posted[3]), text).resolve(settings))
            continue
        parts = re.fullmatch(r"(.+)@([0-9]{1,18})", text)
        if parts is None:
            raise DeclarationError(f"{text!r} is not a valid token", fix=FIX)
        stream, batch = load_contract(settings, parts[1]).name, int(parts[2])
        newest = Log(settings, stream).head().batch
        if batch > newest:
            known = f"its newest batch is {newest}" if newest else "it has no batch yet"
            raise DeclarationError(f"the log of {stream} has no batch {batch}: {known}", fix=f"lake log {stream}")
        tokens.append(BatchToken(stream, batch))
    return tokens


def _check_source(settings: Settings, stream: str, name: str) -> None:
    """Raise DeclarationError if no posted events of the stream can be from that source.

    A source that is no longer declared may have batches in the log.
    """
    logged = Log(settings, stream).head().sources.get(name)
    if logged is None:
        kinds = {file.name: file.options.get("kind") for file in sources(settings).texts}
        if name not in kinds:
            raise DeclarationError(f"no source {name!r}", where=f"{settings.sources}/", fix=did_you_mean(name, kinds))
        is_posted = kinds[name] == "http"
    else:
        is_posted = "upto" in logged.progress
    if not is_posted:
        raise DeclarationError(f"the source {name} takes no posted events, so its events have no token", fix=FIX)


def wait(
    settings: Settings,
    tokens: Iterable[str],
    *,
    timeout: float,
    tables_of: Callable[[editions.Edition], Collection[str]] = lambda edition: edition.tables,
) -> editions.Edition:
    """Wait until readers see all `tokens` in the derived tables `tables_of(edition)`; return the edition.

    Raises Unavailable after `timeout` seconds, and StorageError if editions are lost.
    """
    wanted = parse_tokens(settings, tokens)
    deadline = time.monotonic() + timeout
    seen: tuple[int, Mapping[str, int]] = (0, {})
    while True:
        activity.renew(settings)
        wanted = [token.resolve(settings) for token in wanted]
        edition = editions.current_edition(settings)
        if edition is not None and edition.number != seen[0]:
            seen = edition.number, visible_batches(settings, edition, tables_of(edition))
        missing = [token for token in wanted if edition is None or not token.is_within(seen[1])]
        if edition is not None and not missing:
            return edition
        left = deadline - time.monotonic()
        if left <= 0:
            for damage in editions.lost_editions(settings):
                raise damage.fault
            raise _timed_out(settings, missing, edition, seen[1], timeout)
        time.sleep(min(POLL_SECONDS, left))


def _timed_out(
    settings: Settings,
    missing: list[BatchToken],
    edition: editions.Edition | None,
    batches: Mapping[str, int],
    timeout: float,
) -> Unavailable:
    if edition is None:
        shown = "nothing has been published yet"
    else:
        visible = ", ".join(f"{token.stream} up to batch {batches.get(token.stream, 0)}" for token in missing)
        shown = f"edition {edition.number} (cut {edition.cut}) has {visible}"
    why, fix = _obstacle(settings, missing, edition)
    names = ", ".join(map(str, missing))
    return Unavailable(f"{names}: not published after {timeout:g} s: {shown}; {why}", fix=fix)


def _obstacle(settings: Settings, missing: list[BatchToken], edition: editions.Edition | None) -> tuple[str, str]:
    newest, cut = editions.latest_edition(settings), cuts.latest_cut(settings)
    if newest and edition and newest.number != edition.number:
        pinned = f"readers are pinned to edition {edition.number}; the newest is {newest.number}, of cut {newest.cut}"
        return pinned, "lake publish --resume unpins them"
    if cut is None or not all(token.is_within(cut.batches) for token in missing):
        return (
            f"no cut has it yet{f' (the newest is {cut.number})' if cut else ''}",
            "lake run, or wait for the next cycle",
        )
    stopped = [
        check
        for check in checks.last_checks(settings).values()
        if check.outcome == "stopped" and check.cut > editions.cut_of(settings, edition, check.table)
    ]
    if stopped:
        names = ", ".join(sorted(check.table for check in stopped))
        return f"the gate stopped {names} at cut {max(c.cut for c in stopped)}", "lake status shows the rows"
    return f"cut {cut.number} has it and is not published yet", "wait longer, or lake run"


def visible_batches(settings: Settings, edition: Edition, tables: Collection[str] | None = None) -> Mapping[str, int]:
    """Return the last batch per stream that all derived `tables` have."""
    seen = dict(cuts.get_cut(settings, edition.cut).batches)
    for name in edition.tables if tables is None else tables:
        if edition.cut_of(name) != edition.cut:
            behind = cuts.get_cut(settings, edition.cut_of(name)).batches
            streams = _source_streams(settings, edition, name)
            for stream in [*seen] if streams is None else streams:
                seen[stream] = min(seen.get(stream, 0), behind.get(stream, 0))
    return seen


def _source_streams(settings: Settings, edition: Edition, name: str) -> set[str] | None:
    """Return a table's streams, from its commits; None if they are not recorded."""
    entry = edition.tables[name]
    head = delta.commit_metadata(Warehouse(settings).root / entry.path, entry.version)
    if "inputs" not in head:
        return None
    homes = head["homes"]
    streams = {source for source in head["inputs"] if source not in homes}
    for parent in homes:
        of_parent = _source_streams(settings, edition, parent) if parent in edition.tables else None
        if of_parent is None:
            return None
        streams |= of_parent
    return streams
