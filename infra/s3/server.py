"""An S3 server on this machine, S3Proxy over a folder, until Ctrl-C: `make server S=s3`.

It listens on 127.0.0.1 alone, on --port (with --listen elsewhere, as on a network of containers), and checks signatures
(version 4) of the one key in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; without these it makes one, kept in the file
`environment` of --home for a shell to source.
Buckets are folders of --home/buckets, by default those of .lake/s3; --bucket makes one. Its jars are those of
infra/s3/jars.txt: `--fetch` puts them into --jars, verified, and ends.
"""

from __future__ import annotations

import argparse
import os
import secrets
from pathlib import Path
from typing import Final

from infra.server import S3

KEY: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def main() -> None:
    """Reads the command line, writes the settings, and becomes the server."""
    parser = S3.parser("An S3 server on this machine, until Ctrl-C.", port=9000)
    parser.add_argument("--bucket", default="lake", help="a bucket to be there (default: lake)")
    parser.add_argument("--listen", default="127.0.0.1", help="address that it listens on (default: 127.0.0.1)")
    parser.add_argument("--latency", type=int, default=0, help="milliseconds that every request takes longer")
    given = S3.parsed(parser)
    buckets, config = given.home / "buckets", given.home / "s3proxy.conf"
    (buckets / given.bucket).mkdir(mode=0o700, parents=True, exist_ok=True)
    private(config, settings(given, buckets, *key(given.home)))
    command = S3.command(given, "256m", [f"-Dlogback.configurationFile={S3.folder / 'logback.xml'}"])
    proxy = ["org.gaul.s3proxy.Main", "--properties", str(config)]
    S3.become([*command, *proxy], f"http://{given.listen}:{given.port}, buckets in {buckets}")


def settings(given: argparse.Namespace, buckets: Path, identity: str, credential: str) -> str:
    """The settings of a server of one key, whose buckets are folders."""
    lines = {
        "s3proxy.authorization": "aws-v4",
        "s3proxy.endpoint": f"http://{given.listen}:{given.port}",
        "s3proxy.identity": identity,
        "s3proxy.credential": credential,
        "jclouds.provider": "filesystem",
        "jclouds.filesystem.basedir": buckets,
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
