"""Crashes for so many minutes, each kind as often as the others; then the state machine for a quarter as long.

python -m tests.crash --minutes 30 --seed 1 --only 'log|MERGE'
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.crash.crashes import OF_OWN_JVM, OF_PYTHON, OF_SERVER, Crash
from tests.crash.machine import run_machine
from tests.crash.soak import DISKS, Soak

ALL: list[Crash | str] = [*OF_PYTHON, *DISKS, *OF_SERVER, *OF_OWN_JVM]

SEVERAL = 3
"""Turns of a crash after which it must have landed once."""


def name(crash: Crash | str) -> str:
    return crash if isinstance(crash, str) else crash.name


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="crashes whose name has this pattern")
    parser.add_argument("--but", default="$^", help="crashes whose name has not this pattern")
    parser.add_argument("--machine", type=float, help="minutes for the state machine")
    parser.add_argument("--home", type=Path, help="where the shops are, those where something went wrong for good")
    given = parser.parse_args()
    crashes = [each for each in ALL if re.search(given.only, name(each)) and not re.search(given.but, name(each))]
    with ExitStack() as stack:
        home = given.home or Path(stack.enter_context(TemporaryDirectory(prefix="crash-")))
        home.mkdir(parents=True, exist_ok=True)
        soak = stack.enter_context(Soak(home, given.seed))
        began = time.monotonic()
        while time.monotonic() < began + 60 * given.minutes:
            one_more(soak, min(crashes, key=lambda each: soak.turns[name(each)]))
        never = [each for each, turns in soak.turns.items() if turns > SEVERAL and not soak.landed[each]]
        print("", *soak.told(), *(f"never landed: {each}" for each in never), "", sep="\n", flush=True)
        failed = machines(soak, given.seed, given.minutes / 4 if given.machine is None else given.machine)
    sys.exit(bool(failed or never or soak.faulty.total()))


def one_more(soak: Soak, crash: Crash | str) -> None:
    began = time.monotonic()
    outcome = soak.turn(crash)
    seconds = time.monotonic() - began
    print(f"{'landed' if outcome.landed else 'missed'}  {name(crash):<48} {seconds:5.1f} s", flush=True)
    for fault in outcome.faults:
        print(f"    {fault}", flush=True)


def machines(soak: Soak, first: int, minutes: float) -> int:
    """Runs of the state machine from the seed `first` on; how many failed."""
    began, runs, failed = time.monotonic(), 0, 0
    while time.monotonic() < began + 60 * minutes:
        try:
            run_machine(lambda: soak.commands, number=first + runs, steps=20)
        except Exception:
            failed += 1
            print(f"machine: seed {first + runs}", traceback.format_exc(), sep="\n", flush=True)
        runs += 1
    print(f"machine: {runs} runs of 20 steps, {runs - failed} as the model and the recomputation say")
    return failed


if __name__ == "__main__":
    main()
