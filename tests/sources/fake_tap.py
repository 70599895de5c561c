"""Tap that executes a script: `python fake_tap.py SCRIPT [--state FILE]`.

SCRIPT is a JSON list of [step, argument]: "line" writes a text, "row" a RECORD, "state" a STATE, "exit" ends with that
code, "die" by SIGKILL, "wait" until a file exists. Steps up to the row of the given state are skipped.
Each start is recorded with its state in SCRIPT.runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    script = Path(sys.argv[1])
    state = json.loads(Path(sys.argv[3]).read_text()) if sys.argv[2:] else None
    with script.with_suffix(".runs").open("a") as runs:
        runs.write(json.dumps(state) + "\n")
    after = state["row"] if state else 0
    for step, what in json.loads(script.read_text()):
        if step == "row" and what > after:
            say({"type": "RECORD", "stream": "s", "record": {"number": what}})
        elif step == "state" and what > after:
            say({"type": "STATE", "value": {"row": what}})
        elif step == "line":
            sys.stdout.write(what)
            sys.stdout.flush()
        elif step == "wait":
            while not Path(what).exists():
                time.sleep(0.01)
        elif step == "exit":
            sys.exit(what)
        elif step == "die":
            os.kill(os.getpid(), signal.SIGKILL)


def say(message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
