"""Fields of events that are unknown to their contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lake.cli import lake
from lake.config import Settings
from lake.contracts.contract import load_contract
from lake.ingest.drift import UnknownField, sealed_events, unknown_fields
from lake.store.log import Log
from tests import shop
from tests.warehouse import commit


@pytest.fixture
def log_settings(project: Settings) -> Settings:
    """Log whose events have undeclared fields of every JSON type and kind of name."""
    shop.declare(project, shop.contract("things", {"id": "long", "gate": "string", "day": ("int", {"aliases": ["d"]})}))
    extras: list[dict[str, Any] | None] = [
        {"n": 1, "gaet": "A1", "d": 3, 'x.y/~"z': True, "mix": 1, "half": 1, "none": None},
        {"n": -2, "gaet": "A2", "mix": "one", "half": 0.5, "deep": {"a": 1}, "many": [1], "2nd": "b", "GATE": "c"},
        {"n": 3, "ünit": "m"},
        None,
    ]
    texts = ", ".join("(NULL)" if e is None else f"('{json.dumps(e, ensure_ascii=False)}')" for e in extras)
    log = Log(project, "things")
    commit(log.path, f"SELECT 1::BIGINT AS id, _extra::VARCHAR AS _extra FROM (VALUES {texts}) t(_extra)")
    return project


def test_unknown_fields_are_named_with_their_declaration(log_settings: Settings) -> None:
    contract = load_contract(log_settings, "things")
    found = {field.name: field for field in unknown_fields(log_settings, contract)}
    assert [*found][:2] == ["n", "gaet"]
    assert {name: field.events for name, field in found.items()} == {
        **dict.fromkeys(['x.y/~"z', "none", "deep", "many", "2nd", "GATE", "ünit"], 1),
        **dict.fromkeys(["gaet", "mix", "half"], 2),
        "n": 3,
    }
    assert {name: field.like for name, field in found.items() if field.like} == {"gaet": "gate", "GATE": "gate"}
    declared = {name: json.loads(field.line) for name, field in found.items() if field.line}
    assert {*found} - {*declared} == {"deep", "many", "GATE"}
    assert {name: (field["name"], field["type"][1]) for name, field in declared.items()} == {
        "n": ("n", "long"),
        "gaet": ("gaet", "string"),
        'x.y/~"z': ("x_y___z", "boolean"),
        "mix": ("mix", "string"),
        "half": ("half", "double"),
        "none": ("none", "string"),
        "2nd": ("field_2nd", "string"),
        "ünit": ("nit", "string"),
    }
    # The contract accepts each line, and then knows the field.
    file = log_settings.path("schemas/things.avsc")
    schema = json.loads(file.read_text())
    file.write_text(json.dumps({**schema, "fields": [*schema["fields"], *declared.values()]}))
    assert {field.name for field in unknown_fields(log_settings, load_contract(log_settings, "things"))} == {
        "deep", "many", "GATE"
    }  # fmt: skip


def test_lake_schemas_reports_unknown_fields(log_settings: Settings) -> None:
    def answer(*words: str) -> str:
        done = CliRunner().invoke(lake, ["schemas", *words, "--project", str(log_settings.project)])
        assert done.exit_code == 0, done.exception
        return str(done.stdout)

    lines = answer().splitlines()
    at = lines.index("  unknown field 'n' in 3 events; the log keeps its values")
    added = '{"name": "n", "type": ["null", "long"], "default": null, "doc": "…"}'
    assert lines[at + 1] == f"    add to the fields of things: {added}"
    at = lines.index("  unknown field 'GATE' in 1 event; the log keeps its values")
    assert lines[at + 1] == '    add to the field \'gate\', if it is that one: "aliases": ["GATE"]'
    [told] = json.loads(answer("--json"))
    assert told["unknown"][0] == {"name": "n", "events": 3, "line": added, "like": "", "record": ""}
    assert told["sealed"] == 0
    [rows] = Path(str(Log(log_settings, "things").path)).glob("*.parquet")
    rows.write_bytes(b"damaged")
    assert json.loads(answer("--json"))[0]["unknown"] == []


def test_members_of_nested_fields_are_named_by_their_path(project: Settings) -> None:
    point = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "long"}]}
    fields: dict[str, Any] = {
        "id": "long",
        "at": (point, {"aliases": ["place"]}),
        "path": {"type": "array", "items": "point"},
        "named": {"type": "map", "values": {"type": "array", "items": "point"}},
    }
    shop.declare(project, shop.contract("things", fields))
    extras: list[dict[str, Any]] = [
        {"at": {"y": 1}, "path": {"0": {"y": 1, "a.b": 2}, "7": {"y": 2.5}}},
        {"place": {"y": 1}, "named": {"k.1": {"2": {"z": {}}}}},
        {
            "at": {"x": 1, "y": "b", "X": 1},
            "path": [{"x": 1}, {"x": 2, "y": 3}],
        },  # members ingested before they were declared
        {"path": {"3": {"y": None}}, "other": {"y": 1}},
    ]
    texts = ", ".join(f"('{json.dumps(extra)}')" for extra in extras)
    log = Log(project, "things")
    commit(log.path, f"SELECT 1::BIGINT AS id, _extra::VARCHAR AS _extra FROM (VALUES {texts}) t(_extra)")
    found = {field.name: field for field in unknown_fields(project, load_contract(project, "things"))}
    assert {name: (field.record, field.events) for name, field in found.items()} == {
        "path[].y": ("path[]", 3),
        "at.y": ("at", 2),
        "at.X": ("at", 1),
        "named[][].z": ("named[][]", 1),
        "other": ("", 1),
        "path[].a.b": ("path[]", 1),
        "place.y": ("place", 1),
    }
    assert json.loads(found["path[].y"].line)["type"] == ["null", "double"]
    assert {name for name, field in found.items() if not field.line} == {"at.X", "named[][].z", "other", "path[].a.b"}
    done = CliRunner().invoke(lake, ["schemas", "--project", str(project.project)])
    added = '{"name": "y", "type": ["null", "string"], "default": null, "doc": "…"}'
    assert f"    add to the record at of things: {added}" in done.stdout.splitlines()


def test_sealed_members_are_counted_and_not_named(project: Settings) -> None:
    fields = {"id": "long", "who": "string", "mail": ("string", {"personal": True})}
    shop.declare(project, shop.contract("people", fields, subject="who"))
    commit(Log(project, "people").path, "SELECT * FROM (VALUES ('aGVsbG8gd29ybGQ='), (NULL), ('')) t(_extra)")
    contract = load_contract(project, "people")
    assert (unknown_fields(project, contract), sealed_events(project, contract)) == ([], 1)


def test_log_without_events_has_no_unknown_field(project: Settings) -> None:
    shop.declare(project, shop.contract("things", {"id": "long"}))
    assert unknown_fields(project, load_contract(project, "things")) == list[UnknownField]()
