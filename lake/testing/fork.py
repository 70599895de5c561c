"""Warm process that runs each command in a fork of itself.

It prints `ready`, then reads one order per line of standard input, as JSON. For each it prints the pid of the fork,
then the exit code (negative: signal). No session and no table is opened before a fork.
"""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn

import lake
from lake.testing.fault_injection import Kill, PassRecorder, inject_faults


def main() -> None:
    command = _import_all()
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if not pid:
            _run_order(command, order)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _import_all() -> Callable[[], None]:
    [script] = entry_points(group="console_scripts", name="lake")
    command: Callable[[], None] = script.load()
    for module in pkgutil.walk_packages(lake.__path__, "lake."):
        if ".templates" not in module.name and not module.name.endswith("__main__"):
            with suppress(ModuleNotFoundError):  # its extra is not installed, such as that of lake.read.shell
                import_module(module.name)
    import_module("pyspark.sql.connect.session")
    from lake.quality.gx import import_library

    import_library()
    return command


def _run_order(command: Callable[[], None], order: Mapping[str, Any]) -> NoReturn:
    code = 1
    try:
        for descriptor, file in ((0, os.devnull), (1, order["out"]), (2, order["err"])):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        os.environ.update(order["environment"])
        os.chdir(order["folder"])
        for name, value in order["tuned"].items():
            module, _, attribute = name.rpartition(".")
            setattr(import_module(module), attribute, value)
        if order["file_bytes"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes"],) * 2)
        if order["notes"]:
            kill = Kill(**order["kill"]) if order["kill"] else None
            cold = Path(order["cold"]) if order["cold"] else None
            inject_faults(PassRecorder(Path(order["warehouse"]), Path(order["notes"]), kill, cold))
        sys.argv = ["lake", *order["arguments"]]
        command()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
