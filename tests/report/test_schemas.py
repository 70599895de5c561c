"""Output of `lake schemas` for a changed contract: each field, and the tables that read it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from lake import cli
from lake.config import Settings, load_settings
from lake.errors import DeclarationError
from lake.ops.catalog import FieldChange, contract_statuses
from tests.warehouse import published

NOTE = {"name": "note", "type": ["null", "string"], "default": None}


@pytest.fixture
def shop(tmp_path: Path) -> Settings:
    published(tmp_path / "shop")
    return load_settings(tmp_path / "shop")


def change(settings: Settings, **fields: Any) -> None:
    """Change attributes of fields of the contract of orders; add or drop others."""
    file = settings.path("schemas/orders.avsc")
    contract = json.loads(file.read_text())
    kept = [field | fields.pop(field["name"], {}) for field in contract["fields"]]
    contract["fields"] = [field for field in kept if not field.get("gone")] + list(fields.values())
    file.write_text(json.dumps(contract, indent=1))


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}}


def test_schemas_lists_each_change_with_the_tables_that_read_the_field(shop: Settings) -> None:
    assert [(one.changed, one.changes) for one in contract_statuses(shop)] == [(False, ())]
    renamed = {"name": "placed", "aliases": ["placed_at"]}
    change(shop, amount=decimal(12, 4), placed_at=renamed, note=NOTE, changed_at={"doc": "Other words."})
    [orders] = contract_statuses(shop)
    assert (orders.changed, orders.version) == (True, 1)
    assert orders.changes == (
        FieldChange("amount", "decimal(10,2)", "decimal(12,4)", ("current_order",)),
        FieldChange("placed", "timestamp", "timestamp", ("current_order",)),
        FieldChange("note", None, "string"),
    )


def test_schemas_command_prints_each_consequence_in_one_line(
    shop: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change(shop, amount=decimal(12, 4), note=NOTE)
    monkeypatch.setattr(sys, "argv", ["lake", "schemas", "--project", str(shop.project)])
    assert cli._run() == 0
    said = capsys.readouterr().out
    assert (
        "amount: was decimal(10,2), becomes decimal(12,4) with the next batch; older events stay as they are;"
        " lake deploy builds current_order anew, and until then lake run ingests and publishes nothing"
    ) in said
    assert "note: new, string; tables go on without it until lake deploy" in said


def test_widening_that_loses_digits_names_a_sufficient_type(shop: Settings) -> None:
    for (precision, scale), told in {
        (10, 4): "make it decimal(12,4), which holds both",
        (9, 1): "restore it: decimal(10,2) holds every decimal(9,1) too",
        (38, 38): "restore it, or add a new field",
        (12, 0): "make it decimal(14,2), which holds both",
    }.items():
        change(shop, amount=decimal(precision, scale))
        with pytest.raises(DeclarationError) as raised:
            contract_statuses(shop)
        assert raised.value.fix.startswith(told)
    change(shop, amount=decimal(14, 2))
    assert contract_statuses(shop)[0].changes[0].now == "decimal(14,2)"
