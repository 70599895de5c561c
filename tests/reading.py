"""Readers of `lake serve http`: a warehouse with every column type, written without Spark, and clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from lake.config import Settings
from lake.read import reader_grants
from lake.read.sql import reader
from lake.store.ledger import cuts, editions
from lake.store.ledger.editions import Edition, EditionTable
from tests import intake
from tests.processes import PATIENCE
from tests.servers.http import installed
from tests.shop import contract, declare, empty
from tests.warehouse import write

TYPES: Final = """
    SELECT * FROM (VALUES
      (1::BIGINT, true, 127::TINYINT, (-32768)::SMALLINT, 2147483647::INTEGER, 1.5::FLOAT, 'nan'::DOUBLE,
       12345678901234567890.1234567890::DECIMAL(38, 10), 25.15::DECIMAL(9, 2), 'plain', '\\x00\\xFF'::BLOB,
       DATE '2024-02-29', TIMESTAMPTZ '2024-03-30 09:12:00.000001Z', [1, NULL, 3]::BIGINT[],
       {'a': 1::BIGINT, 'b': 'x'}, MAP {'k': 1.50::DECIMAL(5, 2)}, 7),
      (2, false, -128, 0, -1, 'inf', '-inf', -0.0000000001, -0.01, E'two\nlines, "quoted"; =1+1', ''::BLOB,
       DATE '0001-01-01', TIMESTAMPTZ '1969-12-31 23:59:59.999999Z', [], {'a': NULL, 'b': ''}, MAP {}, 7),
      (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 7),
      (4, true, 0, 1, 0, 0.1, 1e300, 0, 0, 'żółć 🌊 null', 'a'::BLOB, DATE '9999-12-31',
       TIMESTAMPTZ '9999-12-31 23:59:59.999999Z', [NULL], {'a': 9223372036854775807, 'b': NULL},
       MAP {'': NULL, 'é': 0.00}, 7)
    ) t(id, flag, tiny, small, int, float, double, wide, money, text, bytes, day, moment, items, record, prices,
      _state)"""
"""A state column too, which nobody sees."""
LOCAL: Final = "SELECT 1::BIGINT AS id, TIMESTAMP '2024-03-30 09:12:00' AS local_time"
NUMBERS: Final = "SELECT i::BIGINT AS n, 'row ' || i AS text FROM range({first}, {first} + {rows}) t(i)"


def small(folder: Path, settings: str = "") -> Settings:
    """Return a project whose first edition has `gold.types`, `gold.numbers` of 1,000 rows and two silver tables."""
    project = empty(folder, settings)
    declare(project, contract("orders", {"order_id": "long"}))
    write(project, "gold", "types", TYPES)
    write(project, "gold", "numbers", NUMBERS.format(first=0, rows=1000))
    write(project, "silver", "local", LOCAL)
    write(project, "silver", "nothing", "SELECT 1::BIGINT AS a, 'b' AS b WHERE false")
    publish(project, types=0, numbers=0, local=0, nothing=0)
    return project


def publish(settings: Settings, **versions: int) -> Edition:
    """Publish the next edition at a new cut: these tables at these versions, the others unchanged."""
    before = editions.latest_edition(settings)
    layers = {"types": "gold", "numbers": "gold", "local": "silver", "nothing": "silver"}
    entries = dict(before.tables) if before else {}
    for name, version in versions.items():
        layer = layers[name]
        entries[name] = EditionTable(layer, f"{layer}/{name}", version, "f")
    cut = cuts.record_cut(settings, {"orders": before.number + 1 if before else 1}, 0)
    return editions.record_edition(settings, cut.number, entries)


def append(settings: Settings, first: int, rows: int) -> Edition:
    """Publish an edition in which `gold.numbers` has more rows."""
    return publish(settings, numbers=write(settings, "gold", "numbers", NUMBERS.format(first=first, rows=rows)))


@dataclass
class Served:
    """Running server, its project and its readers."""

    settings: Settings
    serving: intake.Serving
    tokens: dict[str, str] = field(default_factory=dict)

    def reader(self, name: str, *tables: str, days: float | None = None) -> str:
        """Return the token of a reader of these tables (default: all), created at first use."""
        if name not in self.tokens:
            _, self.tokens[name] = reader_grants.grant(self.settings, name, tables or ("*",), days=days)
        return self.tokens[name]

    def get(self, path: str, by: str = "all", **headers: str) -> httpx.Response:
        """Return the answer to a GET of a reader."""
        return httpx.get(f"{self.serving.url}{path}", headers=self._headers(by, headers), timeout=PATIENCE)

    def sql(self, body: Any, query: str = "", by: str = "all", **headers: str) -> httpx.Response:
        """Return the answer to a query: a text, or a JSON object."""
        content = {"content": body} if isinstance(body, bytes | str) else {"json": body}
        url = f"{self.serving.url}/sql{query}"
        return httpx.post(url, headers=self._headers(by, headers), timeout=PATIENCE, **content)

    def post(self, path: str, body: Any, by: str = "all", **headers: str) -> httpx.Response:
        """Send a request of Delta Sharing."""
        return httpx.post(f"{self.serving.url}{path}", headers=self._headers(by, headers), json=body, timeout=PATIENCE)

    def reads(self, *columns: str, by: str = "all") -> list[tuple[Any, ...]]:
        """Return these columns of a reader's access records, in order."""
        query = f"SELECT {', '.join(columns)} FROM lake.reads WHERE reader = '{by}' ORDER BY started_at"
        return reader(self.settings).relation(query).fetchall()

    def _headers(self, by: str, headers: dict[str, str]) -> dict[str, str]:
        told = {name.replace("_", "-"): value for name, value in headers.items()}
        return {"authorization": f"Bearer {self.reader(by)}"} | told


@contextmanager
def served(folder: Path, settings: str = "", words: Sequence[str] = ()) -> Iterator[Served]:
    """Run a separate server over the small project."""
    installed()
    project = small(folder, settings)
    with intake.serving(project.project, *words) as serving:
        yield Served(project, serving)
