"""Parser of a contract's text as an Avro record schema, with line numbers."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any, Final

import avro.errors
import avro.name
import avro.schema

from lake.contracts.declared_text import parse_json
from lake.contracts.fields import PRIMITIVES
from lake.errors import DeclarationError, did_you_mean

TYPES: Final = (*PRIMITIVES, "array", "map", "null", "record")
TYPE_MISSING: Final = 'a field needs a "type", an array its "items", a map its "values"'
RECORD: Final = 'a contract is {"type": "record", "name": …, "lake": {"key": …}, "fields": [{"name": …, "type": …}, …]}'

_UNKNOWN_TYPE: Final = re.compile(r"Could not make an Avro Schema object from (\w+)")


def parse_schema(text: str, *, file: str) -> avro.schema.RecordSchema:
    document = parse_json(text, where=file, fix=RECORD)
    if not isinstance(document, dict):
        raise DeclarationError("an event must be a record", where=f"{file}:1", fix=RECORD)
    try:
        schema = parse(document)
    except (avro.errors.AvroException, TypeError, AttributeError, RecursionError) as error:
        raise _located_fault(document, error, text, file) from None
    if not isinstance(schema, avro.schema.RecordSchema):
        raise DeclarationError(f"an event must be a record, found {schema.type}", where=f"{file}:1", fix=RECORD)
    return schema


def parse(document: object, *, validate_names: bool = True) -> avro.schema.Schema:
    """Return the schema in parsed JSON. Raises exceptions of any type."""
    names = avro.name.Names(validate_names=validate_names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)
        return avro.schema.make_avsc_object(document, names, validate_names=validate_names)


def _located_fault(document: dict[str, Any], error: Exception, text: str, file: str) -> DeclarationError:
    """Return the error at the first field that makes a schema of the fields up to it invalid."""
    given = document.get("fields")
    fields = given if isinstance(given, list) else []
    for number, field in enumerate(fields, 1):
        try:
            parse({**document, "fields": fields[:number]})
        except Exception as cause:
            name = field.get("name") if isinstance(field, dict) else None
            about = f"field {name!r}" if name else f"field number {number}"
            nth = sum(isinstance(each, dict) and each.get("name") == name for each in fields[:number])
            line = ContractLines(text).of_field(str(name), nth=nth)
            return _declaration_error(cause, f"{about}: ", f"{file}:{line}")
    return _declaration_error(error, "", f"{file}:1")


def _declaration_error(error: Exception, about: str, where: str) -> DeclarationError:
    unknown = _UNKNOWN_TYPE.search(str(error))
    if unknown and unknown[1] == "None":
        return DeclarationError(f"{about}a type is missing", where=where, fix=TYPE_MISSING)
    if unknown:
        return DeclarationError(f"{about}unknown type {unknown[1]!r}", where=where, fix=did_you_mean(unknown[1], TYPES))
    message = str(error).rpartition(" not a valid Avro schema: ")[2].rstrip(".")
    return DeclarationError(f"not a valid Avro schema: {about}{message}", where=where, fix=RECORD)


@dataclass(frozen=True)
class ContractLines:
    text: str

    def of_field(self, name: str, nth: int = 1) -> int:
        start = self.text.find('"fields"')
        return self._line(rf'"name"\s*:\s*"{re.escape(name)}"', max(start, 0), nth)

    def of_attribute(self, name: str) -> int:
        return self._line(rf'"{re.escape(name)}"\s*:', 0)

    def of_fact(self, name: str) -> int:
        start = max(self.text.find('"lake"'), 0)
        line = self._line(rf'"{re.escape(name)}"\s*:', start)
        return line if line > 1 else self.text.count("\n", 0, start) + 1

    def _line(self, pattern: str, start: int, nth: int = 1) -> int:
        starts = [match.start() for match in re.compile(pattern).finditer(self.text, start)][:nth]
        return self.text.count("\n", 0, starts[-1]) + 1 if starts else 1
