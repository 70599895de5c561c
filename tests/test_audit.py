"""`make audit` without a network: reports of vulnerabilities, jars and licences."""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()
AVRO = "avro==1.12.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb"
SPARK = "pyspark[connect]==4.2.0 \\\n    --hash=sha256:cc"
TWO = f"{AVRO}\n{SPARK}\n"


@pytest.fixture(scope="module")
def audit() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "infra"))
        yield importlib.import_module("audit")


def answers(*replies: Any) -> Callable[[str], Any]:
    """Return a fake pip-audit with these answers, call by call."""
    left = iter(replies)
    return lambda requirements: next(left)


def package(name: str, *vulns: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": "1", "vulns": list(vulns)}


def test_audit_checks_every_package_of_the_lock_with_its_hashes(audit: ModuleType) -> None:
    assert audit.pinned(TWO) == {"avro": AVRO, "pyspark": SPARK}
    assert set(audit.pinned(LOCK)) == set(re.findall(r"^[a-z0-9._-]+", LOCK, re.MULTILINE))
    assert {"pyspark", "cryptography", "pip-audit"} <= set(audit.pinned(LOCK))


def test_audit_fails_for_a_vulnerability(audit: ModuleType) -> None:
    bad = {"id": "CVE-2030-1", "fix_versions": ["2", "3"]}
    ask = answers({"dependencies": [package("avro")]}, {"dependencies": [package("avro", bad), package("pyspark")]})
    assert [tuple(finding) for finding in audit.vulnerabilities(TWO, ask)] == [
        ("FAIL", "vulnerabilities", "avro 1: CVE-2030-1, fixed in 2, 3"),
        ("ok", "vulnerabilities", "no known vulnerabilities in 1 of 2 packages"),
    ]


def test_audit_skips_an_unreachable_database(audit: ModuleType) -> None:
    silent = answers("ERROR: could not connect")
    [told] = audit.vulnerabilities(TWO, silent)
    assert told.outcome == "skip"
    assert "nothing was looked up: ERROR: could not connect" in told.told


def test_audit_skips_a_registry_without_a_database(audit: ModuleType) -> None:
    """pip-audit exits with 0 and `No known vulnerabilities found` if the registry knows none of the packages."""
    skipped = {"name": "avro", "skip_reason": "not found"}
    [told] = audit.vulnerabilities(TWO, answers({"dependencies": [skipped]}))
    assert (told.outcome, told.told) == ("skip", "the database cannot be reached, nothing was looked up: not found")


def test_audit_names_a_package_absent_from_the_database(audit: ModuleType) -> None:
    skipped = {"name": "pyspark", "skip_reason": "not found"}
    ask = answers({"dependencies": [package("avro")]}, {"dependencies": [package("avro"), skipped]})
    assert [tuple(finding) for finding in audit.vulnerabilities(TWO, ask)] == [
        ("skip", "vulnerabilities", "not in the database: pyspark"),
        ("ok", "vulnerabilities", "no known vulnerabilities in 1 of 1 packages"),
    ]


@pytest.mark.slow
def test_pip_audit_accepts_the_lock() -> None:
    command = [sys.executable, "-m", "pip_audit", "--dry-run", "--disable-pip", "--progress-spinner=off"]
    run = subprocess.run([*command, "-r", str(ROOT / "requirements.lock")], capture_output=True, text=True, check=False)
    assert (run.returncode, re.search(r"would have audited \d{3} packages", run.stderr) is not None) == (0, True)


def test_audit_compares_jars_with_the_list(audit: ModuleType, tmp_path: Path) -> None:
    wanted = audit.listed()
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) and jar.licence == "Apache-2.0" for jar in wanted)
    (tmp_path / wanted[0].file).write_bytes(b"something else")
    (tmp_path / "extra.jar").touch()
    told = [finding.told for finding in audit.jars(tmp_path) if finding.outcome == "FAIL"]
    digest = hashlib.sha256(b"something else").hexdigest()
    assert f"{wanted[0].file} has SHA-256 {digest}, not {wanted[0].sha256}" in told
    assert f"{wanted[1].file} is missing" in told
    assert "extra.jar is not on the list" in told


@pytest.mark.parametrize(
    ("licence", "holds"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("BSD-3-Clause AND Zlib", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-2.0-or-later", False),
        ("AGPL-3.0-only", False),
        ("SSPL-1.0", False),
        ("Proprietary", False),
        ("All rights reserved (c)", False),
        ("", False),
    ],
)
def test_audit_allows_or_rejects_a_licence(audit: ModuleType, licence: str, holds: bool) -> None:
    assert audit.allowed(licence) is holds


def test_audit_reads_the_licence_of_a_package_from_any_field(audit: ModuleType) -> None:
    def read(name: str) -> Message:
        told = Message()
        for key, value in packages[name]:
            told[key] = value
        return told

    classifier = "License :: OSI Approved :: MIT License"
    packages = {
        "spdx": [("License-Expression", "MIT OR Apache-2.0"), ("Classifier", "License :: Other/Proprietary License")],
        "classified": [("Classifier", classifier), ("License", "see the file")],
        "said": [("License", "3-Clause BSD License")],
        "copyleft": [("License", "GPL-3.0-only")],
        "silent": [],
    }
    outcomes = {finding.told.partition(",")[0]: finding.outcome for finding in audit.licences(packages, read)}
    assert outcomes["MIT: classified"] == outcomes["BSD-3-Clause: said"] == outcomes["MIT OR Apache-2.0: spdx"] == "ok"
    assert outcomes["GPL-3.0-only: copyleft"] == outcomes["none declared: silent"] == "FAIL"


def test_packages_and_jars_have_a_compatible_licence(audit: ModuleType) -> None:
    wrong = [finding.told for finding in audit.licences(audit.pinned(LOCK)) if finding.outcome != "ok"]
    assert wrong == []


def test_security_policy_is_linked_by_the_readme() -> None:
    text = (ROOT / "infra/SECURITY.md").read_text()
    assert "(infra/SECURITY.md)" in (ROOT / "README.md").read_text()
    for promise in ("power", "row-level", "report"):
        assert promise in text.lower()
    assert json.dumps("make audit")[1:-1] in text
