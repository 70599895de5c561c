"""`lake serve connect` waits for its JVM for any time, with a warning."""

from __future__ import annotations

import itertools
import logging
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from lake.serve import spark_server as serve
from tests.processes import free_port


class Slow:
    """Process that listens from the third poll on."""

    def __init__(self, port: int, ends: ExitStack) -> None:
        self.port, self.ends, self.asked = port, ends, 0

    def poll(self) -> None:
        self.asked += 1
        if self.asked == 3:
            self.ends.enter_context(socket.create_server(("127.0.0.1", self.port)))


def test_connect_server_waits_for_a_slow_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = itertools.count(step=50)
    with ExitStack() as ends, caplog.at_level(logging.WARNING), monkeypatch.context() as patch:
        process = Slow(free_port(), ends)
        patch.setattr(time, "monotonic", lambda: float(next(clock)))
        serve._wait_until_listening(cast("subprocess.Popen[bytes]", process), process.port, tmp_path / "connect.log")
    assert process.asked == 3
    assert "does not listen after 100 s" in caplog.text
