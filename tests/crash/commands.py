"""`lake serve http` killed while it decides, again and again, while another ingests: what it accepted, none refuses.

Each life of the server decides on entries of a few accounts that many connections post, until SIGKILL comes. Another
process takes what was accepted into a log and a table meanwhile, and dies between commit and removal now and
then. In the end the log has every entry that was accepted once, in an order in which none overdraws its account.

python -m tests.crash.commands --kills 200 --seed 1
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.decide.accounts import accounts
from tests.decide.bank import Bank
from tests.intake import Serving, request
from tests.kills import beside, killed_under_load

ACCOUNTS = 5


@dataclass
class Outcome:
    """What became of it: answers 202 and 409, entries in the log, those that are lost, twice, or overdraw."""

    kills: int
    accepted: int
    refused: int
    entries: int
    lost: int
    twice: int
    overdrawn: int
    others: dict[int, int]


def soak(folder: Path, kills: int, seed: int) -> Outcome:
    """Kills a server so many times."""
    bank, chance = Bank(accounts(folder / "bank", 'decide.entries = "account"\n')), random.Random(seed)
    accepted, statuses = set[str](), dict[int, int]()
    with beside(partial(_ingest, bank, random.Random(seed + 1)), 0.1) as failed:
        for life in range(kills):
            make = partial(_request, life)
            client = killed_under_load(bank.settings.project, chance.uniform(0.02, 0.6), make, failed)
            accepted |= {f"{life}-{number}" for number in client.acknowledged}
            for status, count in client.statuses.items():
                statuses[status] = statuses.get(status, 0) + count
    bank.ingest()
    ids = [event["request"] for event in bank.events()]
    overdrawn = sum(state["refused"] for state in bank.folded().values())
    others = {status: count for status, count in statuses.items() if status not in {202, 409}}
    lost, twice = len(accepted - {*ids}), len(ids) - len({*ids})
    return Outcome(kills, len(accepted), statuses.get(409, 0), len(ids), lost, twice, overdrawn, others)


def _ingest(bank: Bank, chance: random.Random) -> None:
    bank.ingest(acknowledge=chance.random() < 0.7)
    if bank.log.head().batch and chance.random() < 0.2:
        bank.advance()


def _request(life: int, serving: Serving, number: int) -> bytes:
    chance = random.Random(f"{life}-{number}")
    body = json.dumps({"account": chance.randrange(ACCOUNTS), "amount": str(chance.randrange(-120, 100))}).encode()
    headers = {"idempotency-key": f"{life}-{number}"}
    return request(serving, "entries?decide", body, "application/json", headers)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        began = time.monotonic()
        outcome = soak(Path(folder), given.kills, given.seed)
    print(f"{time.monotonic() - began:.0f} s: {outcome}")
    sys.exit(bool(outcome.lost or outcome.twice or outcome.overdrawn or not outcome.accepted or not outcome.refused))


if __name__ == "__main__":
    main()
