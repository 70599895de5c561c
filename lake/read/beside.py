"""What a query may read beside the tables of its edition, by name: logs, `log.<stream>`, and ledgers, `lake.runs`.

Only what a query names is opened, so that a damaged log stops no query about tables; in listings, what cannot be read
is left out.
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
from lake.read.relation import Relation
from lake.store import delta
from lake.store.ledger.cuts import Cut, get_cut
from lake.store.ledger.editions import Edition


@dataclass(frozen=True)
class Beside:
    """The logs and ledgers of a project as of an edition's cut, those whose titles `may` lets pass."""

    settings: Settings
    edition: Edition
    may: Callable[[str], bool] = lambda _: True

    @cached_property
    def titles(self) -> tuple[str, ...]:
        """How a query calls them."""
        streams = (f"{logs.SCHEMA}.{stream}" for stream in streams_of(self.settings))
        return tuple(filter(self.may, (*streams, *(f"{ledgers.SCHEMA}.{name}" for name in ledgers.LEDGERS))))

    def named(self, schemas: Collection[str], words: Collection[str]) -> list[str]:
        """The titles that a query of these `schemas` and `words`, in lower case, may read."""
        parts = ((title, *title.lower().split(".")) for title in self.titles)
        return [title for title, schema, name in parts if schema in schemas and name in words]

    def relation(self, title: str) -> Relation:
        """The one called `title`, in any case. Raises LakeError where there is none, or it cannot be read."""
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

    def readable(self, *, but: Collection[str]) -> Iterator[Relation]:
        """Those that can be read, without those called as in `but`; one that proves not to is left out."""
        for title in self.titles:
            if title not in but:
                with suppress(LakeError, delta.Unreadable):
                    yield replace(self.relation(title), optional=True)

    def unknown(self, title: str) -> DeclarationError:
        """That nothing is called `title`, a log or a ledger."""
        schema, _, name = title.lower().partition(".")
        what = "no stream" if schema == logs.SCHEMA else "no ledger"
        of_schema = [other for other in self.titles if other.startswith(f"{schema}.")]
        return DeclarationError(f"{what} {name!r}", fix=did_you_mean(title.lower(), of_schema))

    @staticmethod
    def schema(name: str, query: str) -> str:
        """The schema of a log or a ledger that `query` names with `name`; "" where it names none."""
        schemas = f"{logs.SCHEMA}|{ledgers.SCHEMA}"
        written = re.search(rf'\b({schemas})"?\s*\.\s*"?{re.escape(name)}\b', query, re.IGNORECASE)
        return written[1].lower() if written else ""

    @cached_property
    def _cut(self) -> Cut:
        cut = self.edition.cut
        return get_cut(self.settings, cut) if cut else Cut(0, {}, 0, self.edition.published_at)

    @cached_property
    def _contracts(self) -> tuple[dict[str, Contract], dict[str, DeclarationError]]:
        """The contracts of the project, and what is wrong with those that are left out."""
        return sound_contracts(self.settings)
