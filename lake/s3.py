"""An S3 bucket, or one of a server that speaks its protocol: where it is, and what Spark needs to commit there.

Keys are in the environment alone, where delta-rs, obstore and Hadoop's S3A look for them: no setting has them, as a
client of Spark Connect can read those of the server. Jars are those of `jvm/s3.txt`; the log store, by which of two
writers one wins, is compiled from its source.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from lake import jars
from lake.config import Settings
from lake.errors import DeclarationError, LakeError, Unavailable

LIST: Final = Path(__file__).parent / "jvm/s3.txt"
SOURCE: Final = Path(__file__).parent / "jvm/PutIfAbsentLogStore.java"
LOG_STORE: Final = "headwater.PutIfAbsentLogStore"
SETUP: Final = "lake setup --s3"
FIX: Final = "try again; lake doctor shows whether the store can be reached, and what it answers"
RIGHTS: Final = "give this key (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) the rights to list, get, put and delete there"
KEYS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, both of them"
_DENIED: Final = re.compile(
    r"AccessDenied|Access Denied|status code: 403|InvalidAccessKeyId|SignatureDoesNotMatch|Forbidden|status code: 401"
)
_KEYLESS: Final = re.compile(
    r"Missing (?:SecretAccessKey|AccessKeyId)|credential provider|NoCredentials|no providers in chain"
    r"|Unable to load credentials|169\.254\.169\.254"
)
_ENDPOINT: Final = re.compile(
    r"https?://(?:(?P<address>\d+(?:\.\d+){3}|\[[0-9a-fA-F:.]+\])|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)"
    r"(?::(?P<port>\d{1,5}))?(?:/[^\s?#@]*)?"
)
_BUCKETLESS: Final = re.compile(r"NoSuchBucket|bucket does not exist", re.I)
_STRANGE: Final = re.compile(r"No FileSystem for scheme|Class \S*S3AFileSystem not found|UNSUPPORTED_FILE_SYSTEM")
_UNREACHED: Final = re.compile(
    r"Unable to execute HTTP request|Connection refused|UnknownHostException|AWSServiceIOException|status code: 5\d\d"
)
_STORE: Final = re.compile(
    r"Generic S3 error|Error performing (?:GET|PUT|POST|HEAD|DELETE)|software\.amazon\.awssdk|s3a\."
)


@dataclass(frozen=True)
class Place:
    """A bucket, and how it is reached. `endpoint` is empty for Amazon's own."""

    bucket: str
    endpoint: str
    region: str
    path_style: bool


def place(settings: Settings, url: str) -> Place:
    """The bucket that a URL of an object store is in. Raises DeclarationError for an endpoint that is none."""
    given = settings.storage
    of = os.environ.get
    endpoint = given.endpoint or of("AWS_ENDPOINT_URL_S3", "") or of("AWS_ENDPOINT_URL", "")
    region = given.region or of("AWS_REGION", "") or of("AWS_DEFAULT_REGION", "") or "us-east-1"
    path_style = bool(endpoint) if given.path_style is None else given.path_style
    if endpoint:
        _check(endpoint, path_style)
    return Place(urlsplit(url).netloc, endpoint.rstrip("/"), region, path_style)


def _check(endpoint: str, path_style: bool) -> None:
    """Raises DeclarationError for what obstore and delta-rs would end a thread over."""
    found = _ENDPOINT.fullmatch(endpoint)
    if not found or not 0 < int(found["port"] or 1) < 1 << 16:
        shown = "" if "@" in endpoint else f": {endpoint}"
        raise DeclarationError(
            f"the endpoint of the object store is not the URL of a server{shown}",
            where="storage.endpoint, or AWS_ENDPOINT_URL",
            fix='endpoint = "https://s3.example.org", or with a port; leave it out for Amazon\'s own',
        )
    if found["address"] and not path_style:
        raise DeclarationError(
            f"{found['address']} is an address, and the name of a bucket cannot be put before it",
            where="storage.path_style",
            fix="path_style = true, or leave it out",
        )


def spark_conf(settings: Settings) -> dict[str, str]:
    """The settings of a session that reads and commits in an object store, where the project has something there."""
    if not settings.stores:
        return {}
    at = place(settings, next(iter(settings.stores.values())))
    hadoop = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint.region": at.region,
        "fs.s3a.path.style.access": str(at.path_style).lower(),
        "fs.s3a.input.stream.type": "classic",  # its own is in a jar of Amazon's besides
    }
    if at.endpoint:
        plain = at.endpoint.startswith("http://")
        hadoop |= {"fs.s3a.endpoint": at.endpoint, "fs.s3a.connection.ssl.enabled": str(not plain).lower()}
    told = {f"spark.hadoop.{name}": value for name, value in hadoop.items()}
    return told | {f"spark.delta.logStore.{scheme}.impl": LOG_STORE for scheme in ("s3", "s3a")}


def class_path(folder: Path) -> list[str]:
    """What a JVM needs beside the Delta jars in `folder`. Raises DeclarationError where it is missing."""
    there = _jars(folder)
    if missing := faults(folder):
        raise DeclarationError(missing[0], where=str(there), fix=f"{SETUP} fetches, compiles and verifies it")
    return [*(str(there / jar.file) for jar in jars.listed(LIST)), str(_classes(folder))]


def faults(folder: Path, *, verify: bool = False) -> list[str]:
    """What is missing, or with `verify` wrong, of what S3 needs beside the Delta jars in `folder`."""
    there, wanted = _jars(folder), jars.listed(LIST)
    wrong = jars.faults(there, wanted) if verify else [j.file for j in wanted if not (there / j.file).is_file()]
    if not (_classes(folder) / f"{LOG_STORE.replace('.', '/')}.class").is_file():
        wrong = [*wrong, f"{LOG_STORE} is not compiled"]
    return [f"of the jars for S3 {len(wrong)} are missing or wrong, such as {wrong[0]}"] if wrong else []


def provide(
    folder: Path, tell: Callable[[str], None], *, source: Path | None = None, ivy_settings: Path | None = None
) -> int:
    """Puts what S3 needs beside the Delta jars in `folder`; how many jars were fetched. Raises as `jars.provide`."""
    fetched = jars.provide(_jars(folder), tell, file=LIST, source=source and _jars(source), ivy_settings=ivy_settings)
    if fetched or faults(folder):
        _compile(folder)
    return fetched


def _jars(folder: Path) -> Path:
    return folder / "s3"


def _classes(folder: Path) -> Path:
    """Where the log store is: compiled from this very source."""
    return _jars(folder) / f"classes-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"


def _compile(folder: Path) -> None:
    import pyspark

    compiler = str(Path(os.environ["JAVA_HOME"], "bin/javac")) if os.environ.get("JAVA_HOME") else "javac"
    needed = [str(Path(pyspark.__file__).parent / "jars/*"), f"{folder}/*", f"{_jars(folder)}/*"]
    with tempfile.TemporaryDirectory(dir=_jars(folder), prefix=".compiling-") as scratch:
        command = [compiler, "--release", "17", "-proc:none", "-cp", os.pathsep.join(needed), "-d", scratch]
        try:
            run = subprocess.run([*command, str(SOURCE)], capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise DeclarationError(
                f"no compiler of Java: {compiler}", fix="install a JDK 17 or newer, not only its runtime; lake doctor"
            ) from None
        if run.returncode:
            raise LakeError(f"{SOURCE.name} cannot be compiled: {run.stderr.strip()}", fix="lake doctor")
        Path(scratch).chmod(0o755)
        classes = _classes(folder)
        if not classes.is_dir():
            Path(scratch).rename(classes)
            Path(scratch).mkdir()


def fault(error: BaseException, where: str = "") -> LakeError | None:
    """The error to raise where `error`, of whatever library, is an object store's: None for others."""
    text = str(error)
    module = type(error).__module__.partition(".")[0]
    if module != "obstore" and not _STORE.search(text):
        return None
    where = where or next(iter(re.findall(r"s3a?://[^\s:'\",]+", text)), "")
    return refused(text, where) or silent(text, where)


def unread(error: BaseException, where: str) -> LakeError | None:
    """The error to raise where Spark cannot read objects at all, for which none of them is to blame."""
    text = str(error)
    if _STRANGE.search(text):
        return DeclarationError(
            "this Spark reads no object store",
            where=where,
            fix="start it by `lake serve connect`, or with the settings that docs/how-to/cluster.md names",
        )
    return refused(text, where) or (silent(text, where) if _UNREACHED.search(text) else None)


def refused(text: str, where: str) -> Unavailable | None:
    """That there is no such bucket, or none for this key, where a store says so."""
    if bucket := bucketless(text, where):
        return bucket
    if _DENIED.search(text):
        return Unavailable("the object store refuses this key", where=where, fix=RIGHTS)
    if _KEYLESS.search(text):
        return Unavailable("no key for the object store", where=where, fix=KEYS)
    return None


def bucketless(text: str, where: str) -> Unavailable | None:
    """That there is no such bucket, where a store says so."""
    if _BUCKETLESS.search(text):
        return Unavailable("there is no such bucket", where=where, fix="make it, or name another in [tool.lake]")
    return None


def silent(text: str, where: str) -> Unavailable:
    """That a store did not do what it was asked, and what was said of it."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours
    cause = re.search(r"(Error performing \w+ \S+) in [\w.]+(?:, after \d+ retries[^-]*)? - ([^\n]*)", text)
    said = " - ".join(cause.groups()) if cause else (text.strip().splitlines() or ["no message"])[0]
    return Unavailable(f"the object store does not answer: {said[:300]}", where=where, fix=FIX)
