"""An S3 server on this machine, S3Proxy over a folder, until Ctrl-C: `make s3`.

It listens on 127.0.0.1 alone, on --port, and checks signatures (version 4) of the one key in AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY; without these it makes one, kept in the file `environment` of --home for a shell to source.
Buckets are folders of --home/buckets, by default those of .lake/s3; --bucket makes one. Its jars are those of
infra/s3/jars.txt: `--fetch` puts them into --jars, verified, and ends.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path
from typing import Final

from lake import jars
from lake.errors import LakeError

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
LIST: Final = HERE / "jars.txt"
JARS: Final = Path(os.environ.get("S3PROXY_JARS") or Path(sys.prefix) / "share/headwater/s3proxy")
HOME: Final = Path(os.environ.get("S3PROXY_HOME") or ROOT / ".lake/s3")
KEY: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def main() -> None:
    """Reads the command line, and becomes the server."""
    parser = argparse.ArgumentParser(description="An S3 server on this machine, until Ctrl-C.")
    parser.add_argument("--home", type=Path, default=HOME, help="folder of its data")
    parser.add_argument("--jars", type=Path, default=JARS, help="folder of its jars")
    parser.add_argument("--port", type=int, default=9000, help="port of clients (default: 9000)")
    parser.add_argument("--bucket", default="lake", help="a bucket to be there (default: lake)")
    parser.add_argument("--latency", type=int, default=0, help="milliseconds that every request takes longer")
    parser.add_argument("--fetch", action="store_true", help="fetch its jars, and end")
    given = parser.parse_args()
    if given.fetch:
        sys.exit(fetch(given.jars))
    if missing := jars.faults(given.jars, jars.listed(LIST)):
        sys.exit(f"s3: {missing[0]} ({given.jars})\n  fix: python infra/s3/server.py --fetch")
    start(given)


def fetch(folder: Path) -> int | str:
    """Makes `folder` hold the listed jars; what it ends with."""
    try:
        count = jars.provide(folder, print, file=LIST)
    except LakeError as error:
        return f"s3: {error}"
    print(f"s3: {count} jars fetched and verified into {folder}" if count else f"s3: all jars are in {folder}")
    return 0


def start(given: argparse.Namespace) -> None:
    """Writes its settings, and becomes the server."""
    home = given.home.absolute()
    (home / "buckets" / given.bucket).mkdir(mode=0o700, parents=True, exist_ok=True)
    identity, credential = key(home)
    config = home / "s3proxy.conf"
    private(config, settings(given, home, identity, credential))
    java = str(Path(os.environ["JAVA_HOME"]) / "bin/java") if os.environ.get("JAVA_HOME") else "java"
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Dlogback.configurationFile={HERE / 'logback.xml'}"]
    main = ["-cp", f"{given.jars.absolute()}/*", "org.gaul.s3proxy.Main", "--properties", str(config)]
    print(f"s3: http://127.0.0.1:{given.port}, buckets in {home / 'buckets'}", flush=True)
    os.execvp(java, [java, *options, *main])


def settings(given: argparse.Namespace, home: Path, identity: str, credential: str) -> str:
    """The settings of a server of one key, whose buckets are folders."""
    lines = {
        "s3proxy.authorization": "aws-v4",
        "s3proxy.endpoint": f"http://127.0.0.1:{given.port}",
        "s3proxy.identity": identity,
        "s3proxy.credential": credential,
        "jclouds.provider": "filesystem",
        "jclouds.filesystem.basedir": home / "buckets",
    }
    if given.latency:
        lines |= {"s3proxy.latency-blobstore.*.latency": given.latency}
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def key(home: Path) -> tuple[str, str]:
    """The one key that it knows: that of the environment, or one of its own, made once."""
    if all(os.environ.get(name) for name in KEY):
        return os.environ[KEY[0]], os.environ[KEY[1]]
    file = home / "environment"
    if not file.exists():
        made = zip(KEY, (secrets.token_hex(10), secrets.token_urlsafe(30)), strict=True)
        private(file, "".join(f"export {name}={value}\n" for name, value in made))
    print(f"s3: source {file}")
    first, second = (line.partition("=")[2] for line in file.read_text().splitlines())
    return first, second


def private(file: Path, text: str) -> None:
    """Writes a file that only its owner can read."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        written.write(text)


if __name__ == "__main__":
    main()
