"""Process of a warm server: an embedded session of Spark that also serves Spark Connect on loopback.

`warm_server.join` starts it. The JVM reads from a pipe of this process, so it ends with it even if that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Final

from lake.config import load_settings
from lake.errors import LakeError
from lake.session import file_modes
from lake.session.file_modes import generated_token
from lake.session.remote import HOST, TOKEN, token_file
from lake.session.spark_session import embedded_server, has_jvm_ended
from lake.session.warm_server import LOG, WarmServer, has_clients, locked, recorded

CHECK_SECONDS: Final = 1.0


def main(project: Path, record: Path) -> None:
    """Serve `project` until a signal, or until it had no client for the time of the setting `keep_warm`."""
    settings, ending = load_settings(project), Event()
    file_modes.begin(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.environ[TOKEN] = generated_token(token_file(settings))
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    embedded_server(settings, port, log=LOG)
    clients = Clients(record, settings.spark.keep_warm.total_seconds())
    clients.announce(WarmServer(os.getpid(), port))
    try:
        while not ending.wait(CHECK_SECONDS) and not has_jvm_ended() and not clients.end_if_unused():
            pass
    finally:
        clients.withdraw()


@dataclass
class Clients:
    """Clients of this server, which lock its `record`; `seconds` is the longest time without one."""

    record: Path
    seconds: float
    joined_at: float = 0.0
    seen_at: float = field(default_factory=time.monotonic)

    def announce(self, server: WarmServer) -> None:
        new = self.record.with_suffix(".new")
        new.write_text(json.dumps(asdict(server)), "utf-8")
        new.replace(self.record)

    def end_if_unused(self) -> bool:
        """Return whether the server has to end. If it is unused, delete its record, so that no client joins."""
        with locked(self.record.parent):
            if not self._is_own():
                return True
            joined_at = self.record.stat().st_mtime
            if has_clients(self.record) or joined_at != self.joined_at:
                self.joined_at, self.seen_at = joined_at, time.monotonic()
                return False
            if time.monotonic() - self.seen_at < self.seconds:
                return False
            self.record.unlink()
            return True

    def withdraw(self) -> None:
        with locked(self.record.parent):
            if self._is_own():
                self.record.unlink()

    def _is_own(self) -> bool:
        server = recorded(self.record)
        return server is not None and server.pid == os.getpid()


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except LakeError as fault:
        sys.exit(str(fault))
