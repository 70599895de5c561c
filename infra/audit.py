"""Audits what Headwater is built on: `python infra/audit.py JARS`, with the folder of the jars.

    vulnerabilities   pip-audit asks a database about each package of requirements.lock
    jars              each has the SHA-256 of lake/jars.txt; those that ship with Spark are in its wheel, whose hash is
                      in the lock
    licences          each package and jar has one that is compatible with Apache-2.0, which is Headwater's

Exit code 1 where something is wrong. A database that cannot be reached is reported, and is no fault.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import PackageMetadata, PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from license_expression import ExpressionError, get_spdx_licensing

from lake.connect.s3 import KIND
from lake.session.jars import faults, listed

LOCK: Final = Path(__file__).parents[1] / "requirements.lock"
HERE: Final = Path(__file__).parent
SERVERS: Final = tuple(HERE / f"{name}/jars.txt" for name in ("kafka", "opensearch", "s3"))  # for tests alone

# Licences under which a dependency may be used by, and passed on with, a program under Apache-2.0. The Mozilla one asks
# for the source of its own files where they are changed, and they are not.
ALLOWED: Final = frozenset(
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC"}
    | {"MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Unlicense", "Zlib"}
)
# Names of licences in packages without an SPDX expression.
CALLED: Final[Mapping[str, str]] = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "CC0": "CC0-1.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "The Unlicense (Unlicense)": "Unlicense",
}
_OF_TESTS: Final = "of a server that tests start, is used unchanged"
# Packages that do not say it of themselves, or say more than one: the licence that is taken, and why.
EXCEPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "async-timeout": ("Apache-2.0", "for Python before 3.11.3 only, where redis needs it: not installed here"),
    "colorama": ("BSD-3-Clause", "for Windows only: not installed here"),
    "httpx2-jsfetch": ("BSD-3-Clause", "for Python in a browser only: not installed here"),
    "psycopg": ("LGPL-3.0-only", "of the extra postgres alone; is used unchanged, and can be replaced"),
    "psycopg-binary": ("LGPL-3.0-only", "as psycopg"),
    "pywin32": ("PSF-2.0", "for Windows only: not installed here"),
    "pyyaml-ft": ("MIT", "for free-threaded Python only: not installed here"),
    "text-unidecode": ("Artistic-1.0-Perl", "Artistic or GPL, at choice; comes with Airflow, is used unchanged"),
    "jakarta.servlet-api-6.0.0.jar": ("EPL-2.0", _OF_TESTS),
    "logback-classic-1.6.3.jar": ("EPL-2.0", _OF_TESTS),
    "logback-core-1.6.3.jar": ("EPL-2.0", _OF_TESTS),
    "win-precise-time": ("MIT", "for Windows only: not installed here"),
}

_SPDX: Final = get_spdx_licensing()


class Finding(NamedTuple):
    """Result about a subject: `ok`, `FAIL`, or `skip` if it could not be checked."""

    outcome: str
    subject: str
    told: str


def pinned(lock: str) -> dict[str, str]:
    """The lines of each package in the text of a lock, by its name."""
    blocks = re.findall(r"^([a-z0-9._-]+)(\S*==.*(?:\n {4}.*)*)", lock, re.MULTILINE)
    return {name: name + rest for name, rest in blocks}


def pip_audit(requirements: str) -> dict[str, Any] | str:
    """Return the findings of pip-audit on pinned requirements, or why it has none. It resolves and installs nothing."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(requirements)
        file.flush()
        run = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip_audit",
                "--disable-pip",
                "--progress-spinner=off",
                "-f",
                "json",
                "-r",
                file.name,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    try:
        found: dict[str, Any] = json.loads(run.stdout)
    except ValueError:
        return (run.stderr.strip() or "no answer").splitlines()[-1]
    return found


def vulnerabilities(lock: str, ask: Callable[[str], dict[str, Any] | str] = pip_audit) -> Iterator[Finding]:
    """Yield the known vulnerabilities of the packages of a lock.

    One package is asked for first: a registry without the database answers that it knows none of them, which pip-audit
    takes for good news.
    """
    subject, packages = "vulnerabilities", pinned(lock)
    first = ask(next(iter(packages.values())))
    if isinstance(first, str) or _unknown(first):
        why = first if isinstance(first, str) else first["dependencies"][0]["skip_reason"]
        yield Finding("skip", subject, f"the database cannot be reached, nothing was looked up: {why}")
        return
    found = ask(lock)
    if isinstance(found, str):
        yield Finding("skip", subject, f"the database cannot be reached: {found}")
        return
    for each in found["dependencies"]:
        for one in each.get("vulns", ()):
            mended = f", fixed in {', '.join(one['fix_versions'])}" if one["fix_versions"] else ""
            yield Finding("FAIL", subject, f"{each['name']} {each['version']}: {one['id']}{mended}")
    if unknown := _unknown(found):
        yield Finding("skip", subject, f"not in the database: {', '.join(unknown)}")
    harmed = sum(bool(each.get("vulns")) for each in found["dependencies"])
    known = len(found["dependencies"]) - len(unknown)
    yield Finding("ok", subject, f"no known vulnerabilities in {known - harmed} of {known} packages")


def _unknown(found: Mapping[str, Any]) -> list[str]:
    return [each["name"] for each in found["dependencies"] if "skip_reason" in each]


def jars(folder: Path) -> Iterator[Finding]:
    """Return whether `folder` holds exactly the listed jars."""
    wanted = listed()
    wrong = faults(folder, wanted)
    yield from (Finding("FAIL", "jars", each) for each in wrong)
    if not wrong:
        yield Finding("ok", "jars", f"{len(wanted)} have the expected SHA-256")


def licences(packages: Iterable[str], read: Callable[[str], PackageMetadata] = metadata) -> Iterator[Finding]:
    """The packages, and the jars, by licence."""
    found: dict[str, list[str]] = defaultdict(list)
    for name in packages:
        found[_licence(name, read)].append(name)
    for jar in (*listed(), *listed(KIND.jars), *(jar for file in SERVERS for jar in listed(file))):
        found[jar.licence].append(jar.file)
    for licence, names in sorted(found.items()):
        told = f"{licence or 'none declared'}: {', '.join(names)}"
        reasons = [f"{name}: {EXCEPTIONS[name][1]}" for name in names if name in EXCEPTIONS]
        if allowed(licence) or len(reasons) == len(names):
            yield Finding("ok", "licence", told + f" ({'; '.join(reasons)})" * bool(reasons))
        else:
            yield Finding("FAIL", "licence", told)


def _licence(name: str, read: Callable[[str], PackageMetadata]) -> str:
    """Return a package's licence, as an SPDX expression if possible; "" if it declares none."""
    if name in EXCEPTIONS:
        return EXCEPTIONS[name][0]
    try:
        told = read(name)
    except PackageNotFoundError:
        return ""
    if expression := told.get("License-Expression"):
        return str(expression)
    classified = [each.split(" :: ")[-1] for each in told.get_all("Classifier") or () if each.startswith("License ::")]
    if classified:
        return " AND ".join(CALLED.get(each, each) for each in classified)
    line = next(iter((told.get("License") or "").strip().splitlines()), "")
    return CALLED.get(line, line)


def allowed(licence: str) -> bool:
    """Return whether an SPDX expression allows a choice of only allowed licences."""
    try:
        return _holds(_SPDX.parse(licence, validate=True))
    except ExpressionError:
        return False


def _holds(expression: Any) -> bool:
    if expression is None:
        return False
    if isinstance(expression, _SPDX.AND):
        return all(map(_holds, expression.args))
    if isinstance(expression, _SPDX.OR):
        return any(map(_holds, expression.args))
    return str(expression) in ALLOWED


def main(folder: Path) -> None:
    """Print all findings; exit with 1 if one is a fault."""
    lock = LOCK.read_text("utf-8")
    found = [*vulnerabilities(lock), *jars(folder), *licences(pinned(lock))]
    for each in found:
        print(f"{each.outcome:<4}  {each.subject:<15}  {each.told}")
    sys.exit(any(each.outcome == "FAIL" for each in found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
