"""Check for attributes of a contract without effect.

Avro allows any attribute, so only names that resemble a known one are faults.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from lake.contracts.avro_text import ContractLines
from lake.contracts.fields import ATTRIBUTES, AVRO
from lake.contracts.options import FACTS
from lake.errors import DeclarationError

RECORD: Final = {"type", "name", "namespace", "doc", "aliases", "fields", "lake"}
TYPE: Final = {*RECORD - {"lake"}, "logicalType", "precision", "scale", "items", "values", "symbols", "size", "default"}
OURS: Final = ATTRIBUTES - {"aliases"}
LEAST_SIMILARITY: Final = 0.75


def ineffective_attributes(text: str, *, file: str) -> list[DeclarationError]:
    document, lines = json.loads(text), ContractLines(text)
    faults = [
        DeclarationError(what, where=f"{file}:{lines.of_attribute(name)}", fix=fix)
        for name, what, fix in _record_faults(document)
    ]
    fields = document.get("fields")
    for field in fields if isinstance(fields, list) else []:
        if isinstance(field, dict):
            name = str(field.get("name"))
            where = f"{file}:{lines.of_field(name)}"
            fault = _type_faults(field.get("type"), name)
            faults += [DeclarationError(what, where=where, fix=fix) for what, fix in fault]
    return faults


def _record_faults(document: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    for name in sorted(set(document) - RECORD):
        if name in FACTS:
            yield name, f'{name!r} has no effect next to "lake"', 'move it into "lake": {…}'
        elif near := most_similar(name, RECORD):
            yield name, f"unknown attribute {name!r} of the record", f"did you mean {near!r}?"


def _type_faults(schema: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(schema, list):
        for branch in schema:
            yield from _type_faults(branch, field)
    if not isinstance(schema, dict):
        return
    for name in sorted(set(schema) - TYPE):
        if name in OURS:
            yield (
                f"{name!r} has no effect in the type of field {field!r}",
                f'move it out, beside the "type" of {field!r}',
            )
        elif near := most_similar(name, TYPE):
            yield f"unknown attribute {name!r} in the type of field {field!r}", f"did you mean {near!r}?"
    for part in ("type", "items", "values"):
        yield from _type_faults(schema.get(part), field)
    parts = schema.get("fields")
    for part in parts if isinstance(parts, list) else []:
        if isinstance(part, dict):
            yield from _part_faults(part, field)


def _part_faults(part: Mapping[str, Any], field: str) -> Iterator[tuple[str, str]]:
    about = f"{part.get('name')!r}, a part of field {field!r}"
    for name in sorted(set(part) - AVRO - {"unit"}):
        if name in OURS:
            yield f"{name!r} has no effect on {about}", "only fields of the event have it: make the part one of them"
        elif near := most_similar(name, AVRO | {"unit"}):
            yield f"unknown attribute {name!r} of {about}", f"did you mean {near!r}?"
    yield from _type_faults(part.get("type"), field)


def most_similar(name: str, names: Collection[str]) -> str:
    by_case = {each.lower(): each for each in sorted(names)}
    close = get_close_matches(name.lower(), by_case, n=1, cutoff=LEAST_SIMILARITY)
    return by_case[close[0]] if close else ""
