"""Command `schemas`: lists contracts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lake.cli import Shell, common_options, table
from lake.text import counted

if TYPE_CHECKING:
    from lake.contracts.fields import Field


@click.command()
@common_options
def schemas(shell: Shell) -> None:
    """List the contracts: the schema of each stream. Also lists fields that the contract does not know.

    \b
    Example: lake schemas
    """
    from lake.ops.catalog import contract_statuses

    contracts = contract_statuses(shell.settings)
    data: list[dict[str, Any]] = [
        {
            "stream": one.contract.name,
            "key": list(one.contract.key),
            "id": list(one.contract.id) or one.contract.identity,
            "time": one.contract.time,
            "buckets": one.contract.buckets,
            "version": one.version,
            "changed": one.changed,
            "changes": [asdict(change) for change in one.changes],
            "personal": list(one.contract.personal),
            "doc": one.contract.doc,
            "fields": [_field(field) for field in one.contract.fields],
            "unknown": [asdict(field) for field in one.unknown],
            "sealed": one.sealed,
        }
        for one in contracts
    ]
    lines: list[str] = []
    for row in data:
        state = f"version {row['version']}{', changed' if row['changed'] else ''}" if row["version"] else "not written"
        key, event_time = ", ".join(row["key"]), row["time"] or "none"
        lines += [f"{row['stream']}  ({state})  key: {key}  event time: {event_time}", f"  {row['doc']}"]
        lines += [f"  {line}" for line in table(row["fields"], "name", "type", "unit", "doc")]
        lines += [*(f"  {_change(change)}" for change in row["changes"]), *_unknown(row), ""]
    shell.emit(data, lines or ["no contracts: schemas/ has no .avsc file"])


def _change(change: Mapping[str, Any]) -> str:
    from lake.contracts.evolution import is_lossless

    was, now, tables = change["was"], change["now"], ", ".join(change["tables"])
    if was is None:
        return f"{change['field']}: new, {now}; tables go on without it until lake deploy"
    became = f"{change['field']}: was {was}" if was != now else f"{change['field']}: has another name"
    after = "is dropped" if now is None else f"becomes {now}" if was != now else ""
    what = ", ".join(part for part in (became, after) if part) + " with the next batch; older events stay as they are"
    if not tables:
        return f"{what}, and no table reads it"
    deploy = "lake deploy" if now is None or is_lossless(was, now) else "lake deploy --yes"
    return f"{what}; {deploy} builds {tables} anew, and until then lake run ingests and publishes nothing"


def _field(field: Field) -> dict[str, Any]:
    shown = field.type + ("" if field.nullable else " not null")
    return {"name": field.name, "type": shown, "unit": field.unit, "doc": field.doc, "personal": field.personal}


def _unknown(row: Mapping[str, Any]) -> Iterator[str]:
    for field in row["unknown"]:
        yield f"  unknown field {field['name']!r} in {counted(field['events'], 'event')}; the log keeps its values"
        if field["like"]:
            yield f'    add to the field {field["like"]!r}, if it is that one: "aliases": [{json.dumps(field["name"])}]'
        place = (
            f"the record {field['record']} of {row['stream']}" if field["record"] else f"the fields of {row['stream']}"
        )
        if field["line"]:
            yield f"    add to {place}: {field['line']}"
        elif not field["like"]:
            yield f"    add to {place}: one with its type; it is nested, or its name is taken"
    if row["sealed"]:
        yield f"  {counted(row['sealed'], 'event')} carry unknown fields that are sealed with what is personal"
