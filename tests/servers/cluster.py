"""A Spark cluster of another user, to whom neither the project nor its warehouse's folder is open: master and worker.

Its executors run Debian's Python, with the packages of this environment but not `lake`.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pyspark
import pytest

from tests.processes import PATIENCE, free_port, until
from tests.servers import needed

USER: Final = "nobody"
CLASS: Final = Path(pyspark.__file__).parent / "bin/spark-class"
PYTHON: Final = Path("/usr/bin/python3")
DEPLOY: Final = "org.apache.spark.deploy"


@dataclass
class Cluster:
    """A master and a worker of two cores, in `home`."""

    home: Path
    ports: Mapping[str, int] = field(default_factory=lambda: {name: free_port() for name in ("master", "ui", "worker")})
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.ports['master']}"

    @property
    def environment(self) -> dict[str, str]:
        """What a command's environment says of it."""
        packages = sysconfig.get_paths()["purelib"]
        conf = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "800m", "spark.pyspark.python": str(PYTHON)}
        conf |= {"spark.executorEnv.PYTHONPATH": packages, "spark.cores.max": "2"}
        told = ", ".join(f'"{name}": "{value}"' for name, value in conf.items())
        return {"LAKE_SPARK__MASTER": self.url, "LAKE_SPARK__CONF": f"{{{told}}}", "LAKE_SPARK__DRIVER_MEMORY": "1g"}

    def start(self) -> None:
        """Starts both, and waits until the worker has joined."""
        master = ["--host", "127.0.0.1", "--port", str(self.ports["master"]), "--webui-port", str(self.ports["ui"])]
        self._run(f"{DEPLOY}.master.Master", *master)
        until(lambda: self._workers() == 0)
        worker = ["--host", "127.0.0.1", "--webui-port", str(self.ports["worker"]), "--cores", "2", "--memory", "1g"]
        self._run(f"{DEPLOY}.worker.Worker", *worker, "--work-dir", str(self.home / "work"), self.url)
        until(lambda: self._workers() == 1)

    def _workers(self) -> int | None:
        """How many the master knows; None where it does not answer yet."""
        assert all(process.poll() is None for process in self.processes), (self.home / "out.log").read_text()
        try:
            with urlopen(f"http://127.0.0.1:{self.ports['ui']}/json/", timeout=PATIENCE) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:
            return None

    def _run(self, name: str, *arguments: str) -> None:
        from tests.servers.s3 import KEY  # a plugin too, which pytest is to load itself

        there = {key: value for key, value in os.environ.items() if not key.startswith(("LAKE_", "SPARK_", "PYSPARK_"))}
        own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "HOME": str(self.home), "TMPDIR": "/tmp"}
        own["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"  # its port is not ours to choose
        with (self.home / "out.log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    [str(CLASS), name, *arguments],
                    cwd=self.home,
                    stdout=log,
                    stderr=log,
                    user=USER,
                    group=pwd.getpwnam(USER).pw_gid,
                    extra_groups=[],
                    start_new_session=True,
                    env=there | KEY | own,
                )
            )

    def stop(self) -> None:
        """Ends both, with the executors."""
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            process.wait()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The one cluster of a run."""
    needed(True if os.geteuid() == 0 else None, "a cluster of another user is started by root alone")
    needed(PYTHON if PYTHON.exists() else None, "Debian's Python is missing: apt install python3")
    version = subprocess.check_output([PYTHON, "-c", "import sys; print(sys.version_info[:2])"], text=True)
    needed(version.strip() == str(sys.version_info[:2]) or None, "Debian's Python is of another version")
    home = Path(tempfile.mkdtemp(prefix="headwater-cluster-"))
    shutil.chown(home, USER)
    server = Cluster(home)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)
