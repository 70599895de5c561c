"""`make bench W=queries`: `POST /sql` of `lake serve http` beside plain Starlette and DuckDB. Linux, loopback.

Both servers run at once and are measured in turn, over the same files of the same tables, with equal answers. The
client is a process of its own on the same machine; its cost is within the figures.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx

from infra.bench.times import heading
from lake.config import Settings
from lake.read import reader_grants
from lake.store.ledger import editions
from lake.store.warehouse import Warehouse
from tests import intake
from tests.intake import Client
from tests.processes import PATIENCE, free_port, until
from tests.shop import contract, declare, empty
from tests.warehouse import publish, write

TABLES: Final[Mapping[str, str]] = {
    "sale": """SELECT i::BIGINT AS sale_id, (hash(i, 'store') % 200)::INTEGER AS store_id,
        (hash(i, 'customer') % 20000)::INTEGER AS customer_id,
        DATE '2024-01-01' + (i * 365 // {rows})::INTEGER AS "day",
        ['paid', 'shipped', 'cancelled'][1 + (hash(i, 'status') % 3)::INTEGER] AS status,
        ((hash(i, 'amount') % 100000) / 100)::DECIMAL(12, 2) AS amount FROM range({rows}) t(i)""",
    "customer": """SELECT i::INTEGER AS customer_id, 'customer ' || i AS name, 'tier ' || hash(i) % 4 AS tier
        FROM range(20000) t(i)""",
    "store": "SELECT i::INTEGER AS store_id, 'region ' || i % 12 AS region, i % 3 = 0 AS has_cafe FROM range(200) t(i)",
    "store_day": """SELECT (i % 200)::INTEGER AS store_id, DATE '2024-01-01' + (i // 200)::INTEGER AS "day",
        (hash(i) % 500)::BIGINT AS sales, ((hash(i, 'amount') % 1000000) / 100)::DECIMAL(20, 2) AS amount
        FROM range(73000) t(i)""",
}
FILES: Final = 4
"""Files of each table."""
TILES: Final = (
    "SELECT count(*) AS sales, sum(amount) AS amount FROM sale",
    'SELECT "day", sum(sales)::BIGINT AS sales, sum(amount) AS amount FROM store_day GROUP BY ALL ORDER BY ALL',
    "SELECT store_id, sum(amount) AS amount FROM store_day GROUP BY ALL ORDER BY 2 DESC, 1 LIMIT 10",
    "SELECT region, sum(amount) AS amount FROM store_day JOIN store USING (store_id) GROUP BY ALL ORDER BY ALL",
    "SELECT tier, count(*) AS customers FROM customer GROUP BY ALL ORDER BY ALL",
    "SELECT status, count(*) AS sales, sum(amount) AS amount FROM sale GROUP BY ALL ORDER BY ALL",
    """SELECT name, sum(amount) AS amount FROM sale JOIN customer USING (customer_id) WHERE "day" >= DATE '2024-12-01'
        GROUP BY ALL ORDER BY 2 DESC, 1 LIMIT 20""",
    "SELECT * FROM sale WHERE customer_id = 4711 ORDER BY sale_id DESC LIMIT 50",
    """SELECT "day", sum(sum(amount)) OVER (ORDER BY "day" ROWS 6 PRECEDING) AS amount FROM store_day
        WHERE store_id = 7 GROUP BY "day" ORDER BY "day" DESC LIMIT 30""",
    """SELECT max("day") AS "day", count(DISTINCT store_id) AS stores FROM store_day
        WHERE "day" >= DATE '2024-06-01'""",
)
"""Queries of a dashboard."""
VIEWERS: Final = 5
CLIENTS: Final = 8
Figures = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(description="POST /sql beside a plain Starlette and DuckDB server.")
    parser.add_argument("--rows", type=int, default=400_000, help="of the largest table (default: 400000)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each figure (default: 5)")
    parser.add_argument("--repeat", type=int, default=5, help="repetitions of each figure (default: 5)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd()) as folder:
        bench(Path(folder) / "project", arguments.rows, arguments.seconds, arguments.repeat)


def bench(folder: Path, rows: int, seconds: float, repeat: int) -> None:
    settings = project(folder, rows)
    tokens = [reader_grants.grant(settings, f"viewer_{i}", ["*"])[1] for i in range(VIEWERS)]
    with intake.serving(settings.project) as serving, plain(settings) as port:
        lake, other = Server(serving.port, tokens), Server(port, tokens)
        assert lake.answers() == other.answers()
        for server in (lake, other):
            server.dashboards()  # all workers have started
        for _ in range(repeat):
            for server in (lake, other):
                server.measure(seconds)
        heading(f"{len(TILES)} queries of {len(TABLES)} tables, {rows:,} rows in the largest")
        print(f"{'':<44}{'lake':>10}{'plain':>10}{'ratio':>8}")
        for name, values in lake.figures.items():
            ours, theirs = median(values), median(other.figures[name])
            print(f"{name:<44}{ours:>10.1f}{theirs:>10.1f}{ours / theirs:>8.2f}", flush=True)
        times = [after_publish(settings, lake) for _ in range(repeat)]
        print(f"{'the first dashboards of a new edition, ms':<44}{median(times) * 1000:>10.1f}", flush=True)


@dataclass
class Server:
    """A server that answers `POST /sql`, and its figures."""

    port: int
    tokens: Sequence[str]
    figures: Figures = field(default_factory=dict)

    def answers(self) -> list[Any]:
        """The rows of every tile."""
        url, headers = f"http://127.0.0.1:{self.port}/sql", {"authorization": f"Bearer {self.tokens[0]}"}
        found = [httpx.post(url, content=tile, headers=headers, timeout=PATIENCE) for tile in TILES]
        return [answer.raise_for_status().json() for answer in found]

    def measure(self, seconds: float) -> None:
        alone, crowd = (self.load(clients, seconds) for clients in (1, CLIENTS))
        figures = {
            "1 client, ms (median)": median(alone.seconds) * 1000,
            f"{CLIENTS} clients, ms (median)": median(crowd.seconds) * 1000,
            f"{CLIENTS} clients, requests/s": len(crowd.seconds) / seconds,
            f"{len(TILES)} tiles for {VIEWERS} viewers at once, ms": self.dashboards() * 1000,
        }
        for name, figure in figures.items():
            self.figures.setdefault(name, []).append(figure)

    def load(self, clients: int, seconds: float) -> Client:
        """Clients that send tile after tile."""
        client, end = Client(self.port, self.request), time.monotonic() + seconds
        asyncio.run(client.post(clients, lambda: time.monotonic() >= end))
        assert set(client.statuses) == {200}, client.statuses
        return client

    def dashboards(self) -> float:
        """Seconds until all viewers have all tiles, each over a connection of its own."""
        client, number = Client(self.port, self.request), len(TILES) * VIEWERS
        began = time.monotonic()

        async def view() -> None:
            await asyncio.gather(*(client.post(1, iter([False, True]).__next__) for _ in range(number)))

        asyncio.run(view())
        assert client.statuses == {200: number}, client.statuses
        return time.monotonic() - began

    def request(self, number: int) -> bytes:
        query, token = TILES[number % len(TILES)].encode(), self.tokens[number // len(TILES) % len(self.tokens)]
        head = f"POST /sql HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\ncontent-length: {len(query)}\r\n\r\n"
        return head.encode() + query


def project(folder: Path, rows: int) -> Settings:
    """A project with an edition of the tables."""
    settings = empty(folder)
    declare(settings, contract("sales", {"sale_id": "long"}))
    versions = {}
    for name, query in TABLES.items():
        for part in range(FILES):
            numbered = f"SELECT *, row_number() OVER () AS n, count(*) OVER () AS c FROM ({query.format(rows=rows)})"
            own = f"SELECT * EXCLUDE (n, c) FROM ({numbered}) WHERE (n - 1) * {FILES} // c = {part}"
            versions[name] = write(settings, "gold", name, own)
    publish(settings, 1, **{name: ("gold", version) for name, version in versions.items()})
    return settings


def after_publish(settings: Settings, server: Server) -> float:
    """Seconds until all viewers have all tiles of a new edition, once the server knows of it."""
    version = write(settings, "gold", "sale", f"{TABLES['sale'].format(rows=1)} LIMIT 1")
    before = editions.latest_edition(settings)
    assert before is not None
    versions = {name: (entry.layer, entry.version) for name, entry in before.tables.items()}
    number = str(publish(settings, 1, **versions | {"sale": ("gold", version)}).number)
    headers = {"authorization": f"Bearer {server.tokens[0]}"}
    url = f"http://127.0.0.1:{server.port}/tables"
    until(lambda: httpx.get(url, headers=headers).headers["lake-edition"] == number)
    return server.dashboards()


@contextmanager
def plain(settings: Settings) -> Iterator[int]:
    """The port of a plain server of the same tables."""
    port, root = free_port(), Warehouse(settings).root.local
    tables = [str(root / "gold" / name) for name in TABLES]
    line = [sys.executable, "-m", "infra.bench.plain_server", str(port), *tables]
    with subprocess.Popen(line) as process:
        try:
            until(lambda: answers(port) or process.poll() is not None)
            yield port
        finally:
            process.kill()


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    main()
