"""Logs `log.<stream>` and ledgers `lake.runs` … that a query may read besides tables.

Only those that a query names are opened, so a damaged log stops no other query. Listings skip unreadable ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

from lake.config import Settings
from lake.contracts.contract import Contract, sound_contracts, streams_of
from lake.errors import DeclarationError, LakeError, did_you_mean
from lake.read import ledgers, logs
from lake.read.relation import SystemRelation
from lake.store import delta
from lake.store.ledger.cuts import Cut, get_cut
from lake.store.ledger.editions import Edition


@dataclass(frozen=True)
class SystemTables:
    """Logs and ledgers at an edition's cut, restricted to titles that `may_read` accepts."""

    settings: Settings
    edition: Edition
    may_read: Callable[[str], bool] = lambda _: True

    @cached_property
    def titles(self) -> tuple[str, ...]:
        streams = (f"{logs.SCHEMA}.{stream}" for stream in streams_of(self.settings))
        return tuple(filter(self.may_read, (*streams, *(f"{ledgers.SCHEMA}.{name}" for name in ledgers.LEDGERS))))

    def named(self, schemas: Collection[str], words: Collection[str]) -> list[str]:
        """Return the titles that a query with these lower-case words may read."""
        parts = ((title, *title.lower().split(".")) for title in self.titles)
        return [title for title, schema, name in parts if schema in schemas and name in words]

    def relation(self, title: str) -> SystemRelation:
        """Return the relation `title`. Raises LakeError if unknown or unreadable."""
        by_title = {other.lower(): other for other in self.titles}
        if title.lower() not in by_title:
            raise self.unknown(title)
        schema, _, name = by_title[title.lower()].partition(".")
        if schema == ledgers.SCHEMA:
            return ledgers.relation(self.settings, name, self._cut)
        contracts, faults = self._contracts
        if name in faults:
            raise faults[name]
        return logs.relation(self.settings, contracts[name], self._cut)

    def readable(self, *, but: Collection[str]) -> Iterator[SystemRelation]:
        """Yield the readable relations, except those in `but`."""
        for title in self.titles:
            if title not in but:
                with suppress(LakeError, delta.Unreadable):
                    yield replace(self.relation(title), optional=True)

    def unknown(self, title: str) -> DeclarationError:
        """Return the error for a title that does not exist, or may not be read."""
        schema, _, name = title.lower().partition(".")
        what = "no stream" if schema == logs.SCHEMA else "no ledger"
        of_schema = [other for other in self.titles if other.startswith(f"{schema}.")]
        return DeclarationError(f"{what} {name!r}", fix=did_you_mean(title.lower(), of_schema))

    @staticmethod
    def schema(name: str, query: str) -> str:
        """Return the schema, log or lake, with which `query` names a table; "" if it has none."""
        schemas = f"{logs.SCHEMA}|{ledgers.SCHEMA}"
        written = re.search(rf'\b({schemas})"?\s*\.\s*"?{re.escape(name)}\b', query, re.IGNORECASE)
        return written[1].lower() if written else ""

    @cached_property
    def _cut(self) -> Cut:
        cut = self.edition.cut
        return get_cut(self.settings, cut) if cut else Cut(0, {}, 0, self.edition.published_at)

    @cached_property
    def _contracts(self) -> tuple[dict[str, Contract], dict[str, DeclarationError]]:
        return sound_contracts(self.settings)
