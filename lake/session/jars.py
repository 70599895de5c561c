"""Jars that Spark needs for Delta: the pinned list `jars.txt`, and a folder with exactly its jars.

The jars of an object storage are on its own list, in a subfolder named after its scheme. The SHA-256 of each jar is
checked before Spark can find it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

from lake.config import StorageAccess
from lake.errors import DeclarationError, LakeError, Unavailable, forbidden, full

LIST: Final = Path(__file__).parents[1] / "jars.txt"
FIX: Final = "lake setup"


class Jar(NamedTuple):
    sha256: str
    group: str
    artifact: str
    version: str
    licence: str

    @property
    def file(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


def listed(file: Path = LIST) -> list[Jar]:
    lines = (line.split() for line in file.read_text("utf-8").splitlines() if not line.startswith("#"))
    return [Jar(*(sha256, *coordinates.split(":"), licence)) for sha256, coordinates, licence in lines]


def faults(folder: Path, jars: Sequence[Jar]) -> list[str]:
    return [*_missing_or_wrong(folder, jars), *(f"{name} is not on the list" for name in unlisted(folder, jars))]


def unlisted(folder: Path, jars: Sequence[Jar]) -> list[str]:
    return sorted({file.name for file in folder.glob("*.jar")} - {jar.file for jar in jars})


def are_in(folder: Path) -> bool:
    """Return whether the listed jars exist; `lake setup` and `lake doctor` verify them."""
    return all((folder / jar.file).is_file() for jar in listed())


def storage_faults(folder: Path, kind: StorageAccess, *, verify: bool = False) -> list[str]:
    """Return a fault if jars of a storage are missing or, with `verify`, wrong. `folder` has the Delta jars."""
    own, wanted = folder / kind.scheme, listed(kind.jars)
    wrong = faults(own, wanted) if verify else [jar.file for jar in wanted if not (own / jar.file).is_file()]
    return [f"of the jars for {kind.scheme} {len(wrong)} are missing or wrong, such as {wrong[0]}"] if wrong else []


def storage_class_path(folder: Path, kind: StorageAccess) -> list[str]:
    """Return a storage's jars. `folder` has the Delta jars. Raises DeclarationError if one is missing."""
    own = folder / kind.scheme
    if missing := storage_faults(folder, kind):
        raise DeclarationError(missing[0], where=str(own), fix=f"{FIX} --{kind.scheme} fetches and verifies them")
    return [str(own / jar.file) for jar in listed(kind.jars)]


def provide(
    folder: Path,
    on_progress: Callable[[str], None],
    *,
    file: Path,
    source: Path | None = None,
    ivy_settings: Path | None = None,
) -> int:
    """Install the jars listed in `file` in `folder`. Return their number, 0 if all were in place.

    They are copied from the folder `source`, else fetched by Ivy's own settings or the file `ivy_settings`. Jars of an
    earlier list are deleted; other files in the folder stay. Nothing is replaced before all jars are verified.

    Raises DeclarationError if a named file is missing, Unavailable if the jars cannot be fetched or written, LakeError
    for a jar of other content, or one that is not on the list.
    """
    jars = listed(file)
    if not faults(folder, jars):
        return 0
    wanted = jars if _missing_or_wrong(folder, jars) else []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
            fetched = Path(scratch)
            if source is not None:
                _copy(wanted, source, fetched)
            elif wanted:
                on_progress(f"fetching {len(wanted)} jars ...")
                _fetch(wanted, fetched, ivy_settings)
            _verify(wanted, fetched, str(source or folder))
            _replace(wanted, fetched, folder, file)
    except OSError as error:
        kind = DeclarationError if forbidden(error) else Unavailable
        raise full(error) or kind(
            f"the jars cannot be written: {error.strerror}",
            where=str(folder),
            fix="allow this user to write own, or set `jars` in [tool.lake] to another folder",
        ) from error
    _check_unlisted(folder, jars)
    return len(wanted)


def _check_unlisted(folder: Path, jars: Sequence[Jar]) -> None:
    if others := unlisted(folder, jars):
        raise LakeError(
            f"not on the list, and they would be loaded too: {', '.join(others)}",
            where=str(folder),
            fix="move them elsewhere",
        )


def _verify(jars: Sequence[Jar], fetched: Path, where: str) -> None:
    if wrong := _wrong(fetched, jars):
        raise LakeError(
            f"not the jars that are listed, none was put in place: {'; '.join(wrong)}",
            where=where,
            fix="fetch them from elsewhere: --from DIR, or --ivy-settings FILE",
        )


def _replace(jars: Sequence[Jar], fetched: Path, folder: Path, file: Path) -> None:
    """Move the fetched jars into `folder`, and delete those of its previous list that are not in `file`."""
    previous = folder / LIST.name
    old = listed(previous) if previous.is_file() else []
    for jar in jars:
        (fetched / jar.file).replace(folder / jar.file)
    for name in {jar.file for jar in old} - {jar.file for jar in listed(file)}:
        (folder / name).unlink(missing_ok=True)
    shutil.copyfile(file, fetched / LIST.name)
    (fetched / LIST.name).replace(previous)


def _copy(jars: Sequence[Jar], source: Path, folder: Path) -> None:
    if missing := [jar.file for jar in jars if not (source / jar.file).is_file()]:
        raise DeclarationError(
            f"no {', '.join(missing)}",
            where=str(source),
            fix="name a folder that lake setup filled elsewhere",
        )
    for jar in jars:
        shutil.copyfile(source / jar.file, folder / jar.file)


def _fetch(jars: Sequence[Jar], folder: Path, settings: Path | None) -> None:
    module = folder / "ivy.xml"
    module.write_bytes(_ivy_module(jars))
    spark = find_spec("pyspark")
    if spark is None or not spark.submodule_search_locations:
        raise DeclarationError("pyspark is not installed", fix="install headwater with its dependencies")
    ivy = next((Path(spark.submodule_search_locations[0]) / "jars").glob("ivy-*.jar"))
    command = [java(), "-cp", str(ivy), "org.apache.ivy.Main", "-cache", str(folder / "cache"), "-ivy", str(module)]
    if settings is not None:
        command += ["-settings", str(settings)]
    command += ["-confs", "default", "-retrieve", str(folder / "[artifact]-[revision].[ext]")]
    try:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except FileNotFoundError:
        raise DeclarationError(f"no Java to fetch the jars with: {command[0]}", fix="run lake doctor") from None
    if run.returncode or not all((folder / jar.file).is_file() for jar in jars):
        raise Unavailable(
            f"the jars could not be fetched: {_reason(run.stdout)}",
            fix="is the network reachable? --ivy-settings FILE names a mirror; --from DIR copies them from a folder",
        )


def _reason(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    unresolved = [line for line in lines if re.match(r":: \S+#\S+;\S+: ", line)]
    causes = unresolved or [line for line in lines if "Exception" in line or "Error" in line]
    return (causes or lines or ["Ivy reports no reason"])[0].lstrip(": ")


def _missing_or_wrong(folder: Path, jars: Sequence[Jar]) -> list[str]:
    missing = [f"{jar.file} is missing" for jar in jars if not (folder / jar.file).is_file()]
    return [*missing, *_wrong(folder, jars)]


def _wrong(folder: Path, jars: Sequence[Jar]) -> list[str]:
    return [
        f"{jar.file} has SHA-256 {digest}, not {jar.sha256}"
        for jar in jars
        if (folder / jar.file).is_file() and (digest := _sha256(folder / jar.file)) != jar.sha256
    ]


def _ivy_module(jars: Sequence[Jar]) -> bytes:
    root = ElementTree.Element("ivy-module", version="2.0")
    ElementTree.SubElement(root, "info", organisation="headwater", module="jars")
    ElementTree.SubElement(ElementTree.SubElement(root, "configurations"), "conf", name="default")
    wanted = ElementTree.SubElement(root, "dependencies")
    for jar in jars:
        where = {"org": jar.group, "name": jar.artifact, "rev": jar.version}
        ElementTree.SubElement(wanted, "dependency", where, conf="default->master(default)", transitive="false")
    return ElementTree.tostring(root)


def java() -> str:
    """Return the Java that Spark's scripts would start."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin/java") if home else shutil.which("java") or "java"


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
