"""Puts the jars of `infra/jars.txt` into a folder, each checked against its SHA-256: `python infra/jars.py FOLDER`.

They are resolved by the Ivy that Spark brings. A folder that already holds exactly these jars is left alone, so a
second run needs no network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

LIST = Path(__file__).with_name("jars.txt")


class Jar(NamedTuple):
    """One line of the list."""

    sha256: str
    group: str
    artifact: str
    version: str
    licence: str

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def listed() -> list[Jar]:
    """The jars of the list."""
    lines = (line.split() for line in LIST.read_text("utf-8").splitlines() if not line.startswith("#"))
    return [Jar(sha256, *coordinates.split(":"), licence) for sha256, coordinates, licence in lines]


def faults(folder: Path, jars: list[Jar]) -> list[str]:
    """What keeps `folder` from holding exactly `jars`."""
    missing = [f"{jar.file} is missing" for jar in jars if not (folder / jar.file).is_file()]
    wrong = [
        f"{jar.file} has SHA-256 {found}, not {jar.sha256}"
        for jar in jars
        if (folder / jar.file).is_file() and (found := _sha256(folder / jar.file)) != jar.sha256
    ]
    unknown = {file.name for file in folder.glob("*.jar")} - {jar.file for jar in jars}
    return [*missing, *wrong, *(f"{name} is not on the list" for name in sorted(unknown))]


def resolve(jars: list[Jar], folder: Path) -> None:
    """Downloads `jars` into `folder`; exits with Ivy's own words where it cannot."""
    module = folder / "ivy.xml"
    module.write_bytes(_ivy_module(jars))
    ivy = next((Path(_origin("pyspark")) / "jars").glob("ivy-*.jar"))
    command = [_java(), "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(folder / "cache"), "-ivy", str(module)]
    run = subprocess.run(
        [*command, "-confs", "default", "-retrieve", str(folder / "[artifact]-[revision].[ext]")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if run.returncode or not all((folder / jar.file).is_file() for jar in jars):
        sys.exit(f"{run.stdout}\njars: Ivy could not fetch them (above); is the network reachable?")


def main(target: Path) -> None:
    """Fills `target` unless it is right already."""
    jars = listed()
    if not faults(target, jars):
        print(f"jars: {len(jars)} in place")
        return
    print(f"jars: fetching {len(jars)} (13 MB) ...", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        fetched = Path(scratch) / "jars"
        fetched.mkdir()
        resolve(jars, fetched)
        if wrong := faults(fetched, jars):
            sys.exit("jars: refused, they do not match the list:\n  " + "\n  ".join(wrong))
        shutil.rmtree(fetched / "cache")
        (fetched / "ivy.xml").unlink()
        shutil.copy(LIST, fetched / LIST.name)
        shutil.rmtree(target, ignore_errors=True)
        fetched.rename(target)
    print(f"jars: {len(jars)} verified in {target}")


def _ivy_module(jars: list[Jar]) -> bytes:
    root = ElementTree.Element("ivy-module", version="2.0")
    ElementTree.SubElement(root, "info", organisation="headwater", module="jars")
    ElementTree.SubElement(ElementTree.SubElement(root, "configurations"), "conf", name="default")
    wanted = ElementTree.SubElement(root, "dependencies")
    for jar in jars:
        where = {"org": jar.group, "name": jar.artifact, "rev": jar.version}
        ElementTree.SubElement(wanted, "dependency", where, conf="default->master", transitive="false")
    return ElementTree.tostring(root)


def _origin(package: str) -> str:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"jars: {package} is not installed; run `make setup`")
    return spec.submodule_search_locations[0]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else "java"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
