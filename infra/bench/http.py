"""Events a second that one `lake serve http` acknowledges, each on the disk before its answer. Linux, loopback.

With records checked against their contract, and with `check = false`.

And decisions: events of 1,000 accounts, each decided on by a Fold, a tenth of which it refuses.

The client is a process of its own on the same machine; its cost is within the figures. Beside them, what the disk
gives: files a second of one event, each fsynced, renamed, and its folder fsynced, without any server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lake.serve.intake_folder import GroupWriter, IntakeFolder
from tests.decide.accounts import DECIDE, accounts
from tests.intake import Client, Serving, request, serving
from tests.shop import contract, declare, empty

EVENT = {"station": "S1", "number": 0, "value": 19.5, "note": "a reading of a meter, with some text beside its number"}


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description="Events a second with fsync.")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each figure (default: 5)")
    parser.add_argument("--connections", type=int, default=64, help="clients at once (default: 64)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd()) as folder:
        print(f"{'the disk alone':<55} {disk(Path(folder) / 'disk', arguments.seconds):>10,.0f} files/s")
        for each, connections in ((1, 1), (1, arguments.connections), (100, 16), (1000, 8)):
            for check in (True, False):
                with served(Path(folder) / f"{each}-{connections}-{check}", check=check) as server:
                    rate, latency = posted(server, each, connections, arguments.seconds)
                what = f"{each} events a request, {connections} connections{'' if check else ', unchecked'}"
                print(f"{what:<55} {rate:>10,.0f} events/s, {latency * 1000:.1f} ms a request (median)")
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=Path.cwd()) as folder,
        serving(accounts(Path(folder) / "bank", f"{DECIDE}free_bytes = 0\n").project) as server,
    ):
        for each, connections in ((1, 1), (1, arguments.connections), (1, 256), (100, 16)):
            rate, latency = decided(server, each, connections, arguments.seconds)
            what = f"{each} commands a request, {connections} connections"
            print(f"{what:<55} {rate:>10,.0f} decisions/s, {latency * 1000:.1f} ms a request (median)")


@contextmanager
def served(folder: Path, *, check: bool) -> Iterator[Serving]:
    """A server of one stream, which checks records against their contract or does not."""
    settings = empty(folder / "project")
    fields = {"station": "string", "number": "long", "value": "double", "note": "string"}
    declare(settings, contract("readings", fields, id=["station", "number"]))
    settings.path("sources").mkdir()
    settings.path("sources/web.toml").write_text(f'kind = "http"\nfree_bytes = 0\ncheck = {str(check).lower()}\n')
    with serving(settings.project) as server:
        yield server


def disk(folder: Path, seconds: float) -> float:
    """Group commits of one event each, a second."""
    writer, count, end = GroupWriter(IntakeFolder(folder)), 0, time.monotonic() + seconds
    line = [json.dumps(["readings", json.dumps(EVENT), {}]).encode() + b"\n"]
    while time.monotonic() < end:
        writer.put(line, 1)
        count += 1
    writer.close()
    return count / seconds


def posted(server: Serving, each: int, connections: int, seconds: float) -> tuple[float, float]:
    """Events acknowledged a second, and the median of a request's seconds."""
    body = b"".join(json.dumps(EVENT | {"number": number}).encode() + b"\n" for number in range(each))
    whole = request(server, "readings", body, "application/x-ndjson")
    client, end = Client(server.port, lambda _: whole), time.monotonic() + seconds
    asyncio.run(client.post(connections, lambda: time.monotonic() >= end))
    assert set(client.statuses) == {202}, client.statuses
    return len(client.acknowledged) * each / seconds, statistics.median(client.seconds)


def decided(server: Serving, each: int, connections: int, seconds: float) -> tuple[float, float]:
    """Decisions a second, one a key of those in a request, and the median of a request's seconds."""
    began = time.monotonic_ns()

    def make(number: int) -> bytes:
        amounts = (-1_000_000 if number % 10 == 0 else 1 for _ in range(each))
        entries = ({"account": (number * each + nth) % 1000, "amount": amount} for nth, amount in enumerate(amounts))
        body = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
        key = {"idempotency-key": f"{began}-{number}"}
        return request(server, "entries?decide", body, "application/x-ndjson", key)

    client, end = Client(server.port, make), time.monotonic() + seconds
    asyncio.run(client.post(connections, lambda: time.monotonic() >= end))
    assert {*client.statuses} <= {202, 409}, client.statuses
    return sum(client.statuses.values()) * each / seconds, statistics.median(client.seconds)


if __name__ == "__main__":
    main()
