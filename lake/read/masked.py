"""The text of a query without its values, as the record of reads keeps it.

Constants are replaced in the parsed query, and whatever DuckDB's own tokenizer still finds to be a number or a string
(the size and the seed of a sample, the parameters of a type) in the text made of it. Keys of structs, which are names
to the parser, are replaced as well: `{'ada': 1}` is `struct_pack("?" := '?')`.
"""

from __future__ import annotations

import json
from typing import Any, Final

import duckdb

from lake.store import small

MARK: Final = "?"
TOKEN: Final = f"'{MARK}'"
VALUES: Final = {duckdb.token_type.string_const, duckdb.token_type.numeric_const}


def without_values(tree: dict[str, Any]) -> str:
    """Return the text of a query that json_serialize_sql parsed, with MARK for each value; "" if there is none."""
    with small.connection() as con:
        try:
            row = con.execute("SELECT json_deserialize_sql(CAST(? AS JSON))", [json.dumps(_masked(tree))]).fetchone()
        except duckdb.Error:
            return ""
    return _without_constants(str(row[0])) if row else ""


def _masked(node: Any) -> Any:
    if isinstance(node, list):
        return [_masked(part) for part in node]
    if not isinstance(node, dict):
        return node
    if node.keys() == {"kind", "text"}:
        return {"kind": "STRING", "text": MARK}
    if "is_null" in node and "type" in node:
        return {"type": {"id": "VARCHAR", "type_info": None}, "is_null": False, "value": MARK}
    masked = {name: _masked(part) for name, part in node.items()}
    if node.keys() == {"name", "expression"} and node["name"]:  # an argument by name, or a struct's key
        masked["name"] = MARK
    if node.get("class") == "TYPE" and node.get("alias"):  # a field of a struct's type
        masked["alias"] = MARK
    return masked


def _without_constants(text: str) -> str:
    content, parts, done = text.encode(), list[bytes](), 0
    tokens = duckdb.tokenize(text)
    ends = [offset for offset, _ in tokens[1:]] + [len(content)]
    for (offset, kind), end in zip(tokens, ends, strict=True):
        token = content[offset:end]
        if kind in VALUES and token.strip() != b".":  # which is a number to the tokenizer
            space = token[len(token.rstrip()) :]
            parts += [content[done:offset], TOKEN.encode(), space]
            done = end
    return (b"".join(parts) + content[done:]).decode()
