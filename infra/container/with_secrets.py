"""Becomes a command that has the secrets of files: `python -m infra.container.with_secrets COMMAND …`.

A file of /run/secrets, or of the folder in SECRETS, is the variable of its name in capitals, as PGPASSWORD is of
`pgpassword`. The one of `spark_secret` is what the processes of a Spark cluster ask each other for: a driver has it in
its setting `spark.conf`, a master and a worker in the spark-defaults.conf that is made for them in SPARK_CONF_DIR. None
is on a command line.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = "/run/secrets"
CLUSTER: Final = "spark_secret"
NAME: Final = re.compile("[a-z][a-z0-9_]*")
SECRET: Final = re.compile(r"[!-\[\]-~]{8,}")
"""What goes unchanged through a variable, a file of properties and JSON, and is of no empty file."""


def main() -> None:
    """Reads the files, and becomes the command. Ends with a message if there is none, or a file holds no secret."""
    if not sys.argv[1:]:
        sys.exit(_fault("no command", "the command line", "python -m infra.container.with_secrets COMMAND …"))
    folder = Path(os.environ.pop("SECRETS", FOLDER))
    secrets = {file.name: _secret(file) for file in sorted(folder.glob("*")) if NAME.fullmatch(file.name)}
    if cluster := secrets.pop(CLUSTER, None):
        _tell_spark(cluster)
    os.environ |= {name.upper(): secret for name, secret in secrets.items()}
    try:
        os.execvp(sys.argv[1], sys.argv[1:])
    except OSError as error:
        sys.exit(_fault(f"{error.strerror}: {sys.argv[1]}", "the command line", "name a program of the image"))


def _tell_spark(secret: str) -> None:
    """Require `secret` of every connection to a master, worker or driver, and encrypt it."""
    conf = {"spark.authenticate": "true", "spark.authenticate.secret": secret, "spark.network.crypto.enabled": "true"}
    if daemon := os.environ.get("SPARK_CONF_DIR"):
        Path(daemon).mkdir(mode=0o700, exist_ok=True)
        file = os.open(Path(daemon, "spark-defaults.conf"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(file, "w") as written:
            written.writelines(f"{name} {value}\n" for name, value in conf.items())
    else:
        os.environ["LAKE_SPARK__CONF"] = json.dumps({**_driver_conf(), **conf})


def _driver_conf() -> Mapping[str, str]:
    given = os.environ.get("LAKE_SPARK__CONF", "{}")
    try:
        return dict(json.loads(given))
    except (TypeError, ValueError):
        fix = 'a JSON object, as {"spark.executor.memory": "2g"}'
        sys.exit(_fault("no JSON object", "the variable LAKE_SPARK__CONF", fix))


def _secret(file: Path) -> str:
    try:
        text = file.read_text("ascii").strip()
    except OSError as error:
        sys.exit(_fault(f"cannot be read: {error.strerror}", str(file), "make it readable to the container's user"))
    except UnicodeDecodeError:
        text = ""
    if not SECRET.fullmatch(text):
        what = "expected one line of 8 or more letters, digits and signs of ASCII, without blanks and backslashes"
        sys.exit(_fault(what, str(file), f"openssl rand -hex 24 > {file.name}"))
    return text


def _fault(what: str, where: str, fix: str) -> str:
    return f"with_secrets: {what}\n  where: {where}\n  fix: {fix}"


if __name__ == "__main__":
    main()
