"""A tap that writes what it is told to: `python fake_tap.py SCRIPT [--state FILE]`.

SCRIPT is a JSON list of [step, what]: "line" writes a text, "row" a RECORD, "state" a STATE, "exit" ends with that
code, "die" by SIGKILL, "wait" until a file is there. What comes up to the row of the state it is given is
passed over. Each start, with the state it was given, is noted in SCRIPT.runs.
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
