"""Spark Connect server behind TLS, as on another host."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lake.ops.scaffold import init
from tests.serving import LAKE, SHORT_LIVED, serving
from tests.tls import certificate, front


@pytest.mark.long
def test_tls_server_requires_a_trusted_certificate_and_the_token(tmp_path: Path) -> None:
    shop, file = tmp_path / "shop", tmp_path / "tls.pem"
    init(shop)
    file.write_bytes(certificate())

    def lake(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [LAKE, *words, "--project", shop]
        environment |= {"LAKE_IN_PROCESS_ROWS": "0"}
        return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)

    with serving(shop, SHORT_LIVED) as server, front(int(server.remote.rpartition(":")[2]), file) as port:
        reached = {"SPARK_REMOTE": f"sc://127.0.0.1:{port}/;use_ssl=true", "LAKE_SPARK__SHARES_DISK": "false"}
        trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(file)}
        done = lake("run", **reached, **trusted)
        assert done.returncode == 0, done.stderr
        done = lake("verify", **reached, **trusted)
        assert (done.returncode, "identical" in done.stdout) == (0, True), done.stderr
        done = lake("doctor", **reached, **trusted)
        assert (done.returncode, "executors" in done.stdout) == (0, True), done.stdout + done.stderr
        guessed = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": "guessed"}
        for environment, code, said in (
            (reached, 75, "CERTIFICATE_VERIFY_FAILED"),
            (reached | trusted | guessed, 2, "not accept this token"),
            ({"SPARK_REMOTE": f"sc://localhost:{port}"}, 75, "Spark Connect"),
            (reached | trusted | {"SPARK_REMOTE": f"{server.remote}/;use_ssl=true"}, 75, "Spark Connect"),
        ):
            done = lake("rebuild", "--all", **environment)
            assert (done.returncode, said in done.stderr) == (code, True), (environment, done.stderr)
            assert "Traceback" not in done.stderr
            assert guessed["SPARK_CONNECT_AUTHENTICATE_TOKEN"] not in done.stderr
