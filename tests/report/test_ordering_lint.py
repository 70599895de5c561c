"""Lint of tables that depend on the order between partitions, which is undefined."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lake.ops import ordering_lint
from lake.project.project import load
from lake.store.log import SourcePosition
from tests.packages import install
from tests.shop import contract, declare, empty, job

FACTS = {
    "id": "long",
    "n": "long",
    "at": "timestamp",
    "whole": ("string", {"from": "kafka.key"}),
    "left": ("string", {"from": "kafka.key.left"}),
    "right": ("string", {"from": "kafka.key.right"}),
    "shard": ("int", {"from": "kafka.partition"}),
    "offset": ("long", {"from": "kafka.offset"}),
}
WHOLE, PARTS = ("id", "n", "at", "whole", "shard"), ("id", "n", "at", "left", "right")
PLACED = ("n", "at", "whole", "shard", "offset")
KINDS = {
    'Latest("n")': True,
    'Latest("n", sequence="at")': True,
    'Latest("n", sequence="id")': False,
    'Latest("id", sequence="_n")': False,
    'Latest("n", sequence=("at", "_id"))': False,
    'Latest("whole")': False,
    'Latest(("n", "shard"))': False,
    'Latest("left")': True,
    'Latest(("left", "right"), sequence="at")': False,
    'Latest("n", sequence="_offset")': True,
    'Latest("n", sequence=("at", "offset"))': True,
    'Latest("whole", sequence="offset")': False,
    'Latest(("n", "shard"), sequence="_offset")': False,
    'First("n")': True,
    'History("n", sequence="at")': True,
    'History("whole", sequence="at")': False,
    'Aggregate("n", measures={"c": Count()})': False,
    'Aggregate("n", measures={"c": FirstValue("at", by="at")})': True,
    'Aggregate("n", measures={"c": FirstValue("at", by=("at", "id"))})': False,
    'View("n", identity="id")': False,
}
ALIKE = {
    'Latest("whole")',
    'Latest(("n", "shard"))',
    'Latest("whole", sequence="offset")',
    'Latest(("n", "shard"), sequence="_offset")',
    'Latest(("left", "right"), sequence="at")',
    'History("whole", sequence="at")',
}
"""Kinds that depend on the order of one partition."""


@pytest.mark.parametrize("partitions", [1, 8])
def test_table_is_named_when_no_partition_decides_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    install(monkeypatch, tmp_path / "packages", {"lake.sources": {"fake": "tests.sources.fake:KIND"}})
    monkeypatch.setattr(ordering_lint, "declared_position", lambda *_: SourcePosition(1, {"to": 1}, ("events",)))
    settings = empty(tmp_path / "shop")
    streams = {"events": WHOLE, "parts": PARTS, "placed": PLACED}
    contracts = [
        contract(name, {field: FACTS[field] for field in fields}, id=["n", "offset"] if name == "placed" else ["id"])
        for name, fields in streams.items()
    ]
    jobs, apart = {}, set()
    for number, (kind, is_apart) in enumerate(KINDS.items()):
        stream = "parts" if "left" in kind else "placed" if "offset" in kind else "events"
        jobs[f"t{number}"] = job(f"t{number}", kind, f'log("{stream}")')
        apart |= {f"t{number}"} if is_apart and partitions > 1 else set()
    declare(settings, *contracts, jobs=jobs)
    outside = settings.project / "outside.json"
    outside.write_text(json.dumps({"transactions": [], "acknowledged": 0, "partitions": partitions}))
    (settings.project / "sources").mkdir()
    lines = ['kind = "fake"', f'file = "{outside}"', f"streams = {[*streams]}"]
    (settings.project / "sources/bank.toml").write_text("\n".join(lines) + "\n")
    project = load(settings)
    warnings = list(ordering_lint.find_unordered_tables(project, streams))
    assert {warning.partition(" ")[0] for warning in warnings} == apart
    assert all(f"{partitions} partitions" in warning for warning in warnings)
    assert not list(ordering_lint.find_unordered_tables(project, []))
    (settings.project / "sources/other.toml").write_text("\n".join(lines) + "\n")
    warnings = list(ordering_lint.find_unordered_tables(project, streams))
    by_partition = {f"t{number}" for number, kind in enumerate(KINDS) if kind in ALIKE}
    named = {f"t{number}" for number, is_apart in enumerate(KINDS.values()) if is_apart}
    assert {warning.partition(" ")[0] for warning in warnings} == named | by_partition
    assert all("2 sources" in warning for warning in warnings)
