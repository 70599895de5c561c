"""Small projects for tests: empty ones, and ones of a few contracts and jobs. `init` makes that of `lake init`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lake.config import Settings, load_settings
from lake.contracts.encryption import KEY, SUBJECT
from lake.ops.scaffold import init
from lake.store.keys import KeyStore
from lake.testing import Lakehouse

HEAD: Final = "from datetime import timedelta\nfrom lake import *\n"
LOGICAL: Final = {
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "date": {"type": "int", "logicalType": "date"},
}


def empty(folder: Path, settings: str = "") -> Settings:
    """Return an empty project in an empty or new folder, with lines of settings."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(f"[tool.lake]\n{settings}")
    for name in ("schemas", "jobs/silver", "jobs/gold", "quality", "landing"):
        (folder / name).mkdir(parents=True)
    return load_settings(folder)


def new_shop(home: Path) -> Lakehouse:
    """Return the shop of `lake init` in a folder with its warehouse. Nothing has been landed."""
    init(home / "shop")
    return Lakehouse(home / "shop", home)


def order(number: int, customer: str = "joan", **values: str) -> dict[str, Any]:
    """Return a record of the shop: an order placed on a day derived from its number."""
    at = f"2024-04-{number % 20 + 3:02}T10:00:00Z"
    record = {"order_id": number, "customer": customer, "status": "placed", "amount": "9.00"}
    return record | dict.fromkeys(("placed_at", "changed_at"), at) | values


def all_keys(store: KeyStore, stream: str = "orders") -> dict[str, bytes]:
    """Return the keys of all people of a stream, by their tokens."""
    return {row[SUBJECT]: row[KEY] for part in store.all_keys(stream) for row in part.to_pylist()}


def avro(kind: Any) -> Any:
    """Return the Avro type of `timestamp`, `date`, `decimal(9, 2)` or a type of Avro."""
    if not isinstance(kind, str):
        return kind
    if digits := re.fullmatch(r"decimal\((\d+), (\d+)\)", kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": int(digits[1]), "scale": int(digits[2])}
    return LOGICAL.get(kind, kind)


def optional(kind: Any) -> tuple[Any, dict[str, Any]]:
    """Return a type and its default for a nullable field, in short `int?`."""
    return ["null", avro(kind)], {"default": None}


def field(name: str, kind: Any) -> dict[str, Any]:
    """Return a field of a contract: of a type, or of (a type, {more attributes})."""
    if isinstance(kind, str) and kind.endswith("?"):
        kind = optional(kind[:-1])
    of, more = kind if isinstance(kind, tuple) else (kind, {})
    return {"name": name, "type": avro(of), **more}


def contract(name: str, fields: Mapping[str, Any], **about: Any) -> dict[str, Any]:
    """Return the contract of a stream in two buckets whose key is its first field, unless `about` declares another."""
    return {
        "type": "record",
        "name": name,
        "doc": f"One of {name}.",
        "lake": {"key": [next(iter(fields))], "buckets": 2} | about,
        "fields": [field(name, kind) for name, kind in fields.items()],
    }


def job(name: str, kind: str, *inputs: str, returns: str = "", head: str = HEAD) -> str:
    """Return the file of a table over silver tables and `log('…')`; its function names them `rows`, `rows1` …."""
    rows = ", ".join(f"rows{n or ''}" for n in range(len(inputs)))
    imports = "".join(f"from jobs.silver.{table} import {table}\n" for table in inputs if "(" not in table)
    declared = f"@table({kind}, {', '.join(inputs)})\ndef {name}({rows}):\n"
    return f'{head}{imports}\n{declared}    """A row."""\n    return {returns or rows}\n'


def declare(settings: Settings, *contracts: Mapping[str, Any], jobs: Mapping[str, str] | None = None) -> Lakehouse:
    """Write contracts and the files of jobs, {"gold/name" or the "name" of a silver one: text}, into a project. `home`
    is the folder of the Lakehouse's warehouse.
    """
    for schema in contracts:
        settings.path(f"schemas/{schema['name']}.avsc").write_text(json.dumps(schema, indent=1))
    for name, text in (jobs or {}).items():
        settings.path(f"jobs/{name}.py" if "/" in name else f"jobs/silver/{name}.py").write_text(text)
    return Lakehouse(settings.project, settings.project / "home")
