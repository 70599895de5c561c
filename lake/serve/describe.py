"""Description of the intake from the contracts: example requests, and an OpenAPI 3.1 document."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from lake.contracts.contract import Contract
from lake.contracts.fields import Field
from lake.serve.bodies import CLOUD_EVENT, CLOUD_EVENTS
from lake.serve.problems import INTAKE_KINDS, MEDIA_TYPE, Kinds
from lake.serve.source import RECEIVED

TIME: Final = "2024-01-31T09:30:00Z"
NUMBERS: Final = ("int", "bigint", "float", "double")
SIMPLE: Final[Mapping[str, tuple[Mapping[str, Any], Any]]] = {
    "boolean": ({"type": "boolean"}, True),
    "int": ({"type": "integer"}, 1),
    "bigint": ({"type": "integer"}, 1),
    "float": ({"type": "number"}, 1.5),
    "double": ({"type": "number"}, 1.5),
    "date": ({"type": "string", "format": "date"}, TIME[:10]),
    "timestamp": ({"type": "string", "format": "date-time"}, TIME),
    "timestamp_ntz": ({"type": "string"}, TIME[:-1]),
}
"""JSON Schema and example by type; other types are strings."""
PAGES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("text/html", "The streams with their fields, what waits to be ingested, and how tables are read."),
    "/problems": ("text/html", "What each problem means, and what to do."),
    "/openapi.json": ("application/json", "This document."),
    "/health": ("application/json", "Whether events are accepted: 503 while the disk or the backlog forbids it."),
}
_TEXTS: Final = {name: {"type": "string"} for name in ("type", "title", "detail", "fix", "reason", "stream")}
_BAD: Final = {
    "type": "object",
    "description": "A record that is not accepted: its number in the request, from 1, and why.",
    "properties": {"record": {"type": "integer"}, **{name: _TEXTS[name] for name in ("stream", "reason", "detail")}},
}
_PROBLEM: Final = {
    "type": "object",
    "description": "RFC 9457",
    "properties": _TEXTS | {"status": {"type": "integer"}, "errors": {"type": "array", "items": _BAD}},
}
_WAIT: Final = (
    {"name": "wait", "in": "query", "schema": {"enum": ["edition"]}, "description": "Answer when readers see it."},
    {"name": "timeout", "in": "query", "schema": {"type": "number"}, "description": "Seconds to wait at most."},
)
_DECIDED: Final = (
    ("decide", "query", True, "Events are kept if the state of their key allows them all."),
    ("If-Match", "header", False, "The version of the key, in quotes: as an earlier answer had it."),
    ("If-None-Match", "header", False, "*: the key has no event yet."),
)


def posted_fields(contract: Contract) -> list[Field]:
    return [field for field in contract.fields if not field.is_fact]


def needs_id(contract: Contract) -> bool:
    ids = [field for field in contract.fields if field.path == ("http", "id")]
    return any(not field.nullable and not field.has_default for field in ids)


def named_headers(contract: Contract) -> list[str]:
    return [field.path[2].lower() for field in contract.fields if field.path[:2] == ("http", "headers")]


def is_idempotent(contract: Contract) -> bool:
    """Return whether a repeated request gives events of the same identity. Its time of receipt differs."""
    named, is_content = {*contract.key, *contract.id, contract.time}, contract.identity == "content"
    parts = (field for field in contract.fields if field.name in named or (is_content and not field.transport))
    return contract.identity != "position" and not any(field.path == RECEIVED for field in parts)


def example(contract: Contract) -> dict[str, Any]:
    row = {field.name: _schema_and_example(field)[1] for field in posted_fields(contract)}
    return {"op": "c", "before": None, "after": row} if contract.envelope else row


def curl(contract: Contract, base: str, *, decides: bool) -> str:
    record = json.dumps(example(contract), ensure_ascii=False, indent=2).replace("'", "'\\''")
    needed = " \\\n  -H 'Idempotency-Key: order-4711'" if needs_id(contract) else ""
    address = f"'{base}/streams/{contract.name}?decide'" if decides else f"{base}/streams/{contract.name}"
    return f"curl {address} -H \"Authorization: Bearer $TOKEN\"{needed} \\\n  --json '{record}'"


def openapi(contracts: Iterable[Contract], decides: Collection[str], reading: Mapping[str, Any]) -> dict[str, Any]:
    contracts = list(contracts)
    posts = {f"/streams/{contract.name}": {"post": _operation(contract, decides)} for contract in contracts}
    several = {"/streams": {"post": _to_several(contracts, decides)}} if contracts else {}
    described = "Acknowledged events are on the disk. Tables are read as of an edition, whole and checked."
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headwater", "version": "1", "description": described},
        "security": [{"token": []}],
        "paths": {
            **posts,
            **several,
            **reading,
            **{path: {"get": _page(path, *about)} for path, about in PAGES.items()},
        },
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {contract.name: schema(contract) for contract in contracts} | {"Problem": _PROBLEM},
        },
    }


def schema(contract: Contract) -> dict[str, Any]:
    """Unknown fields are allowed and stored."""
    if contract.envelope:
        return {"type": "object", "description": f"A {contract.envelope} change message. {contract.doc}"}
    fields = posted_fields(contract)
    required = [field.name for field in fields if not field.nullable and not field.has_default]
    properties = {field.name: _described(field) for field in fields}
    return {"type": "object", "description": contract.doc, "properties": properties, "required": required}


def _described(field: Field) -> dict[str, Any]:
    described = _schema(field)
    words = [field.doc, f"In {field.unit}." if field.unit else "", "Personal." if field.personal else ""]
    if text := " ".join(filter(None, words)):
        described["description"] = text
    if field.type in NUMBERS:
        bounds = {"minimum": field.minimum, "maximum": field.maximum}
        described |= {end: json.loads(bound) for end, bound in bounds.items() if bound is not None}
    return described


def _schema(field: Field) -> dict[str, Any]:
    schema = dict(_schema_and_example(field)[0])
    if not field.nullable:
        return schema
    if "anyOf" in schema:
        return schema | {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    if "enum" in schema:
        schema["enum"] = [*schema["enum"], None]
    return schema | {"type": [schema["type"], "null"]}


def _schema_and_example(field: Field) -> tuple[Mapping[str, Any], Any]:
    if field.symbols:
        return {"type": "string", "enum": list(field.symbols)}, field.symbols[0]
    if field.type.startswith("decimal"):
        either = {"description": field.type, "anyOf": [{"type": "number"}, {"type": "string"}]}
        return either, field.minimum or "1.50"
    schemas = {part.name: _schema(part) for part in field.parts}
    values = {part.name: _schema_and_example(part)[1] for part in field.parts}
    if field.type.startswith("struct<"):
        return {"type": "object", "properties": schemas}, values
    if field.parts:
        [part_schema], [part_value] = schemas.values(), values.values()
        if field.type.startswith("array<"):
            return {"type": "array", "items": part_schema}, [part_value]
        return {"type": "object", "additionalProperties": part_schema}, {"name": part_value}
    schema, value = SIMPLE.get(field.type, ({"type": "string"}, "…"))
    if field.minimum is not None and field.type in NUMBERS:
        value = json.loads(field.minimum)
    return schema, value


def _operation(contract: Contract, decides: Collection[str]) -> dict[str, Any]:
    one = {"$ref": f"#/components/schemas/{contract.name}"}
    many = {"type": "array", "items": one}
    decided = contract.name in decides
    properties = {"token": {"type": "string"}} | ({"version": {"type": "string"}} if decided else {})
    return {
        "summary": contract.doc or contract.name,
        "operationId": f"post_{contract.name}",
        "parameters": _parameters(with_id=needs_id(contract), decided=decided, must_decide=decided),
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": {"anyOf": [one, many]}, "example": example(contract)},
                "application/x-ndjson": {"schema": {"type": "string"}},
                CLOUD_EVENT: {"schema": {"type": "object"}},
                CLOUD_EVENTS: {"schema": {"type": "array"}},
            },
        },
        "responses": _responses(properties, decided=decided),
    }


def _to_several(contracts: Sequence[Contract], decides: Collection[str]) -> dict[str, Any]:
    records = {contract.name: {"$ref": f"#/components/schemas/{contract.name}"} for contract in contracts}
    either = {name: {"anyOf": [one, {"type": "array", "items": one}]} for name, one in records.items()}
    texts = {"type": "object", "additionalProperties": {"type": "string"}}
    properties = {"tokens": texts} | ({"versions": {"type": "array", "items": {"type": "object"}}} if decides else {})
    schema = {"type": "object", "properties": either, "additionalProperties": False, "minProperties": 1}
    return {
        "summary": "Events of several streams, all of them or none: readers never see a part of them.",
        "operationId": "post_to_several",
        "parameters": _parameters(with_id=any(map(needs_id, contracts)), decided=bool(decides), must_decide=False),
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": _responses(properties, decided=bool(decides)),
    }


def _parameters(*, with_id: bool, decided: bool, must_decide: bool) -> list[dict[str, Any]]:
    id_of = ("Idempotency-Key", "header", with_id, "The same for a request that is sent again.")
    return [
        *_WAIT,
        *(
            {
                "name": name,
                "in": where,
                "required": needed and (must_decide or name != "decide"),
                "schema": {"type": "string"},
                "description": what,
            }
            for name, where, needed, what in (id_of, *(_DECIDED if decided else ()))
        ),
    ]


def _responses(properties: Mapping[str, Any], *, decided: bool) -> dict[str, Any]:
    integer, boolean = {"type": "integer"}, {"type": "boolean"}
    accepted = {**properties, "records": integer, "idempotent": boolean, "edition": integer}
    accepted |= {"again": boolean} if decided else {}
    content = {"application/json": {"schema": {"type": "object", "properties": accepted}}}
    return {
        "202": {
            "description": "Stored durably. With ?wait=edition: stored, but not published before the time-out.",
            "content": content,
        },
        "200": {"description": "With ?wait=edition: readers see it.", "content": content},
        **problems(INTAKE_KINDS),
    }


def _page(path: str, media_type: str, what: str) -> dict[str, Any]:
    refused = {"503": _problem("Events are not accepted at the moment.")} if path == "/health" else {}
    refused = refused or {"401": _problem("Other machines need a token to look.")}
    return {"summary": what, "responses": {"200": {"description": what, "content": {media_type: {}}}} | refused}


def problems(kinds: Kinds) -> dict[str, Any]:
    titles: dict[int, list[str]] = {}
    for status, title, _ in kinds.values():
        titles.setdefault(status, []).append(title)
    return {str(status): _problem("; ".join(of_status)) for status, of_status in titles.items()}


def _problem(titles: str) -> dict[str, Any]:
    return {"description": titles, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
