"""Kills: of commands at a point of their work, of servers under load, of a command with all its children.

`lake.testing` kills a command at its writes to the warehouse and at its acknowledgements to a source. The points here
are beyond these: what a delivery, an alert or a client sends. Names have the same form, `<what>.<before or after>`. The
fixtures `commands` and `kills` take both kinds: `commands.lake("deliver", at=…, kill=Kill("request.before", 2))`.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lake.config import Settings
from lake.testing import Commands, Kill, Lakehouse, fork
from lake.testing.fault_injection import PassRecorder, inject_faults
from tests.intake import Client, Serving, ready, start
from tests.processes import PATIENCE, children, until

if TYPE_CHECKING:
    import pyarrow as pa

    from lake.sinks.sink import TableChanges, Target
    from tests.s3.wire import Fault, Wire

UNDER: Final = (sys.executable, "-m", "tests.kills")
"""The program under which `Commands` know the points of this module."""
METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "rows": ("lake.sinks.sink:TableChanges.batches",),
    "position": ("lake.sinks.sink:SinkDelivery.position",),
    "target": ("lake.sinks.kind:DeclaredSink.open",),
    "delivery": ("lake.sinks.deliver:deliver",),
    "begin": (
        "lake.connect.kafka.sink.topics:KafkaTransaction.__enter__",
        "lake.connect.webhook.target:WebhookTarget._begin",
    ),
    "record": ("lake.connect.kafka.sink.topics:KafkaTransaction.send",),
    "commit": ("lake.connect.kafka.sink.topics:KafkaTransaction.__exit__",),
    "window": ("lake.connect.webhook.target:WebhookTarget._send_window",),
    "messages": ("lake.connect.webhook.receiver:Receiver.send",),
    "note": ("lake.store.ledger_table:LedgerTable.append",),
    "request": (
        "redis.connection:AbstractConnection.send_packed_command",
        "urllib3.connectionpool:HTTPConnectionPool.urlopen",
    ),
    "socket": ("socket:socket.send", "socket:socket.sendall"),
}
"""The methods before and after which there is a point. `rows.after` is in the middle of the first rows of a table;
`target` is the target's own `deliver`.
"""
DELIVERY: Final = ("target.before", "rows.before", "rows.after", "position.before", "target.after", "delivery.after")
"""Points of a delivery to any target, in their order."""
COMMITTED: Final = frozenset({"target.after", "delivery.after"})
"""Those at which the target has committed."""
ANSWER_SECONDS: Final = 0.05  # the server has this long to do what it was sent, if it gives no answer


def methods(what: str) -> Iterator[tuple[Any, str]]:
    """Yield owner and name of the methods of `METHODS`, those of missing extras excluded."""
    for method in METHODS.get(what, ()):
        module, _, names = method.partition(":")
        with suppress(ModuleNotFoundError):
            owner: Any = import_module(module)
            *owners, name = names.split(".")
            for each in owners:
                owner = getattr(owner, each)
            yield owner, name


def inject(passes: PassRecorder) -> None:
    """Wrap the warehouse's points, and those of the method at which this process is to be killed."""
    inject_faults(passes)
    what = passes.kill.point.rpartition(".")[0] if passes.kill else ""
    wrap = {"rows": _rows, "target": _target}.get(what, _method)
    for owner, name in methods(what):
        setattr(owner, name, wraps(getattr(owner, name))(wrap(passes, what, getattr(owner, name))))


def _method(passes: PassRecorder, what: str, own: Callable[..., Any]) -> Callable[..., Any]:
    settle = {"record": _flush, "request": _answered, "socket": _answered}.get(what)

    def followed(*args: Any, **options: Any) -> Any:
        passes.at(f"{what}.before", Path(what))
        done = own(*args, **options)
        if settle and passes.kill and (f"{what}.after", passes.counts[f"{what}.after"] + 1) == _of(passes.kill):
            settle(args[0])
        passes.at(f"{what}.after", Path(what))
        return done

    return followed


def _of(kill: Kill) -> tuple[str, int]:
    return kill.point, kill.nth


def _flush(transaction: Any) -> None:
    transaction._producer.flush(PATIENCE)


def _answered(connection: Any) -> None:
    """Wait until the server answers; an HTTP pool returns only then."""
    waiting = connection if isinstance(connection, socket.socket) else getattr(connection, "_sock", None)
    if waiting is not None:
        select.select([waiting], [], [], ANSWER_SECONDS)


def _rows(passes: PassRecorder, what: str, own: Callable[..., Any]) -> Callable[..., Any]:
    def followed(changes: TableChanges) -> Iterator[pa.RecordBatch]:
        passes.at("rows.before", Path(what))
        for batch in own(changes):
            yield batch.slice(0, batch.num_rows // 2) if passes.kill and passes.kill.point == "rows.after" else batch
            passes.at("rows.after", Path(what))

    return followed


def _target(passes: PassRecorder, what: str, own: Callable[..., Any]) -> Callable[..., Any]:
    def opened(*args: Any) -> Target:
        target: Target = own(*args)
        object.__setattr__(target, "deliver", _method(passes, what, target.deliver))
        return target

    return opened


def killed(commands: Commands, settings: Settings, words: str, point: str, nth: int = 1) -> bool:
    """Run `lake <words>` and kill it at the `nth` pass through `point`; False if it ended before that."""
    house = Lakehouse(settings.project, settings.project.parent)
    house.settings = settings
    environment: Mapping[str, Any] = os.environ
    done = commands.lake(*words.split(), at=house, kill=Kill(point, nth), **environment)
    assert done.landed or done.code == 0, done.out + done.err
    return done.landed


def killed_at_request(
    commands: Commands, wire: Wire, fails: Callable[[str, str], Fault | None], *words: str, **options: Any
) -> bool:
    """Run `lake <words>` and kill it at the request to S3 that `fails`; False if there was none."""
    wire.struck = lambda: os.kill(commands.pid, signal.SIGKILL)
    wire.fails, wire.happened = fails, 0
    done = commands.lake(*words, **options)
    wire.fails = lambda *_: None
    assert done.code == (-signal.SIGKILL if wire.happened else 0), done.err
    return bool(wire.happened)


def kill_with_children(process: subprocess.Popen[bytes]) -> bool:
    """Kill a command and its JVM; return whether it was running."""
    was_running = process.poll() is None
    found, pids = [process.pid], list[int]()
    while found:
        pids += found
        found = [child for pid in found for child in children(pid)]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    return was_running


def killed_under_load(
    project: Path, after: float, make: Callable[[Serving, int], bytes], stop: Callable[[], bool]
) -> Client:
    """Kill `lake serve http` `after` seconds from its first answer, while many connections post what `make` makes."""
    with start(project) as process:
        serving = ready(process)
        client = Client(serving.port, partial(make, serving))

        def kill() -> None:
            until(lambda: bool(client.statuses) or process.poll() is not None)
            time.sleep(after)
            process.kill()

        threading.Thread(target=kill).start()
        asyncio.run(client.post(12, stop))
        assert process.wait() == -signal.SIGKILL, process.stderr and process.stderr.read()
    return client


@contextmanager
def beside(work: Callable[[], object], pause: float) -> Iterator[Callable[[], bool]]:
    """Repeat `work` in a thread until the block ends, and raise its error then. Yields whether it has failed."""
    ended, faults = threading.Event(), list[BaseException]()

    def repeat() -> None:
        while not ended.wait(pause) and not faults:
            try:
                work()
            except BaseException as fault:
                faults.append(fault)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield lambda: bool(faults)
    finally:
        ended.set()
        thread.join()
    if faults:
        raise faults[0]


def main() -> None:
    """Run commands as `lake.testing.fork` does, with the points of this module."""
    fork.inject_faults = inject  # type: ignore[attr-defined]  # which it imports, for its own use
    fork.main()


if __name__ == "__main__":
    main()
