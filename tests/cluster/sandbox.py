"""Services of the Compose file as processes in a separate network, each with the view of its container.

Their commands, variables, ports, secrets and folders are those of the file. Their programs are those of this machine
and environment, at the paths of the image; of the repository they see the files copied by the image.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.containers import Service, image, services
from tests.processes import ROOT, until

ENTER: Final = Path(__file__).with_name("enter.sh")
USER_ID: Final = 1000
BRIEF: Final = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1"}
"""A JVM that lives for minutes compiles code quickly rather than well."""
PATH: Final = "/usr/local/bin:/usr/bin:/bin"


@dataclass
class Sandbox:
    """Services with these variables of Compose; their volumes are in `home`, and `network` is a process in their
    network.
    """

    home: Path
    services: Mapping[str, Service]
    network: subprocess.Popen[str]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str) -> None:
        """Start a service after its dependencies are healthy."""
        for other, how in self.services[name].waits_for.items():
            assert how["condition"] == "service_healthy"
            if other not in self.running:
                self.start(other)
            until(lambda other=other: self.is_well(other))  # type: ignore[misc]
        self.running[name] = self.launch(name, self.services[name].command)

    def is_well(self, name: str) -> bool:
        """Return the result of its health check. Fail if it has ended."""
        process = self.running[name]
        assert process.poll() is None, self.said(name)
        there = ["nsenter", f"--target={process.pid}", "--net", "--mount", "--root"]
        user = ["setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups"]
        command = [*there, *user, "env", "--ignore-environment", "--chdir=/project", *self._environment(name)]
        command += self.services[name].health
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout + done.stderr)  # Shown if a test fails
        return done.returncode == 0

    def launch(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a process of a service with that command."""
        with (self.home / f"{name}.log").open("ab") as log:
            return subprocess.Popen(self._into(name, command), env=self._as_seen(name), stdout=log, stderr=log)

    def call(self, name: str, *words: str, entrypoint: Sequence[str] = (), code: int = 0) -> str:
        """Return the output of `docker compose run NAME WORDS`: stdout, or stderr for an expected failure."""
        command = [*(entrypoint or self.services[name].entrypoint), *words]
        done = subprocess.run(
            self._into(name, command), env=self._as_seen(name), capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout

    def said(self, name: str) -> str:
        """Return all output of its processes."""
        return (self.home / f"{name}.log").read_text()

    def stop(self, name: str) -> int:
        """Stop it like Compose, within its time, and return its exit code."""
        process = self.running.pop(name)
        process.terminate()
        grace = self.services[name].says.get("stop_grace_period", "10s")
        return process.wait(int(grace[:-1]) * {"s": 1, "m": 60}[grace[-1]])

    def _into(self, name: str, command: list[str]) -> list[str]:
        network = ["nsenter", f"--net=/proc/{self.network.pid}/ns/net", "unshare", "--mount", str(ENTER)]
        return [*network, *self._environment(name), *command]

    def _environment(self, name: str) -> list[str]:
        own = image().environment | self.services[name].environment
        own = {key: value.replace("$PATH", PATH) for key, value in own.items()} | {"HOME": "/tmp", **BRIEF}
        return [f"{key}={value}" for key, value in own.items()]

    def _as_seen(self, name: str) -> dict[str, str]:
        """Return the variables that make enter.sh mount the view of the process."""
        service = self.services[name]
        copied = {there: ROOT / what for there, what in image().copied.items() if there.startswith("/opt/")}
        links = {"/opt/headwater": Path(sys.prefix), "/opt/lake": ROOT / "lake", **copied}
        links["/opt/python"] = Path(sys.executable).resolve()  # The environment's own is a link to it
        mounts = {there: self._folder(source) for source, there in service.volumes if source}
        mounts.setdefault("/project", self._folder("nothing"))  # The working directory of the image
        held = ["--no-new-privs"] if "no-new-privileges:true" in service.says["security_opt"] else []
        held += ["--bounding-set=-all"] if service.says["cap_drop"] == ["ALL"] else []
        for folder in (self.home / "base" / name, self.home / "secrets" / name):
            folder.mkdir(parents=True, exist_ok=True)
        for secret in service.secrets:
            (self.home / "secrets" / name / secret).write_text((self.home / secret).read_text())
        return {
            "PATH": f"{PATH}:/usr/sbin:/sbin",
            "BASE": str(self.home / "base" / name),
            "USER_ID": str(USER_ID),
            "LINKS": "\n".join(f"{what}\t{there}" for there, what in links.items()),
            "MOUNTS": "\n".join(f"{what}\t{there}" for there, what in mounts.items()),
            "MEMORY": " ".join([*service.in_memory, *(there for source, there in service.volumes if not source)]),
            "SECRETS": str(self.home / "secrets" / name),
            "HOSTS": f"127.0.0.1 localhost {os.uname().nodename}\n"
            + "".join(f"127.0.1.{number} {other}\n" for number, other in enumerate(self.services, 1)),
            "WRITABLE": "no" if service.says["read_only"] else "yes",
            "HELD": " ".join(held),
        }

    def _folder(self, source: str) -> Path:
        """Return the folder of a volume or of this machine, owned by the containers' user."""
        folder = Path(source) if source.startswith("/") else self.home / "volumes" / source
        folder.mkdir(parents=True, exist_ok=True)
        os.chown(folder, USER_ID, USER_ID)
        return folder


@contextmanager
def sandbox(home: Path, secrets: Mapping[str, str], **variables: str) -> Iterator[Sandbox]:
    """Create a network for services; they are killed at the end of the block."""
    home.mkdir()
    for name, secret in secrets.items():
        (home / name).write_text(f"{secret}\n")
    holder = ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"]
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as network:
        assert network.stdout is not None
        assert network.stdout.readline() == "ready\n"
        made = Sandbox(home, services(**variables), network)
        try:
            yield made
        finally:
            for process in made.running.values():
                process.kill()
                process.wait()
            network.kill()
