"""Decoders of values and keys to text: JSON unchanged, Avro as JSON.

Both may use the wire format of Confluent's serializers: a zero byte and the schema's id (4 bytes), or a one and its
GUID (16 bytes), before the value, or the id in a header (docs.confluent.io, "Wire format"). No JSON begins so.

A value that cannot be decoded becomes a text with the reason and the bytes, which every contract rejects.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from confluent_kafka import Message

from lake.connect.kafka.source.options import KafkaOptions
from lake.errors import DeclarationError, LakeError, Unavailable, install
from lake.records import avro_values, json_value
from lake.records.raw_values import RawValue
from lake.text import printable

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
T = TypeVar("T")
Decode: TypeAlias = Callable[[bytes, Headers], str]

PREFIX_BYTES: Final = {0: 5, 1: 17}
FORBIDDEN: Final = (401, 403)
NOT_FOUND: Final = 404


class UndecodableError(Exception): ...


def undecodable_text(why: object, value: bytes) -> str:
    shown = printable(value.decode("utf-8", "backslashreplace"))
    return f"cannot be decoded: {' '.join(str(why).split())[:300]}; its bytes: {shown}"


def of_json(value: bytes, _: Headers = ()) -> str:
    """Decode JSON, without the prefix of the wire format."""
    if value[:1] in {b"\x00", b"\x01"}:
        value = value[PREFIX_BYTES[value[0]] :]
    text = of_text(value)
    if not text or text.isspace():
        raise UndecodableError("it is empty")
    return text


def of_text(value: bytes, _: Headers = ()) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise UndecodableError(f"not valid UTF-8 at byte {error.start}") from None


def of_base64(value: bytes, _: Headers = ()) -> str:
    return base64.b64encode(value).decode()


DECODERS: Final[Mapping[str, Decode]] = {"json": of_json, "text": of_text, "base64": of_base64}


def decoder(name: str, registry: SchemaRegistry, *, is_key: bool) -> Decode:
    return AvroDecoder(registry, is_key=is_key) if name == "avro" else DECODERS[name]


class AvroDecoder:
    def __init__(self, registry: SchemaRegistry, *, is_key: bool = False) -> None:
        from confluent_kafka.serialization import MessageField

        self._registry = registry
        self._field = MessageField.KEY if is_key else MessageField.VALUE

    def __call__(self, value: bytes, headers: Headers) -> str:
        from confluent_kafka.schema_registry import dual_schema_id_deserializer
        from confluent_kafka.schema_registry.serde import SchemaId
        from confluent_kafka.serialization import SerializationContext

        schema_id = SchemaId("AVRO")
        try:
            context = SerializationContext("", self._field, list(headers))
            payload = dual_schema_id_deserializer(value, context, schema_id)
        except Exception as error:  # of any kind, for bytes without a prefix
            raise UndecodableError(f"not in the wire format of a schema registry ({error})") from None
        decode, data = self._registry.decoder(schema_id.guid or schema_id.id), payload.read()
        try:
            decoded, end = decode(data, 0)
            text = json.dumps(_json_value(decoded), ensure_ascii=False)
        except Exception as error:  # of any kind, for bytes of another schema
            raise UndecodableError(
                f"not of the schema {schema_id.guid or schema_id.id} ({type(error).__name__}: {error})"
            ) from None
        if end < len(data):
            raise UndecodableError(f"{len(data) - end} bytes more than the schema {schema_id.guid or schema_id.id} has")
        return text


def _json_value(decoded: RawValue) -> RawValue:
    match decoded:
        case dict():
            return {name: _json_value(part) for name, part in decoded.items()}
        case list():
            return [_json_value(part) for part in decoded]
        case avro_values.NotText():
            raise ValueError("a string is not valid UTF-8")
        case bool() | int() | None:
            return decoded
        case float() if math.isfinite(decoded):
            return decoded
    return json_value.plain_text(decoded)


class SchemaRegistry:
    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self._decoders: dict[object, avro_values.Decode | UndecodableError] = {}

    def close(self) -> None:
        if client := self.__dict__.pop("_client", None):
            client.close()

    @cached_property
    def _client(self) -> SchemaRegistryClient:
        if find_spec("httpx") is None:
            raise DeclarationError(
                "Avro needs httpx, which the extra `kafka` installs",
                where=self.options.where,
                fix=install("kafka"),
            )
        from confluent_kafka.schema_registry import SchemaRegistryClient

        for name in ("httpx", "httpcore"):  # they log each request
            logging.getLogger(name).setLevel(logging.WARNING)
        declared = {
            name: int(setting) if setting.isdecimal() else str(setting)
            for name, setting in self.options.registry.items()
        }
        settings: dict[str, Any] = {"timeout": self.options.seconds, "max.retries": 1, **declared}
        try:
            return SchemaRegistryClient(settings)
        except (ValueError, TypeError, OSError) as error:
            what = f"the registry's client refuses a setting: {self.options.redacted(str(error))}"
            raise DeclarationError(what, where=self.options.where, fix="correct it in [registry]") from None

    def decoder(self, key: object) -> avro_values.Decode:
        if key not in self._decoders:
            try:
                self._decoders[key] = self._parsed(self._schema(key))
            except UndecodableError as error:
                self._decoders[key] = error
        decode = self._decoders[key]
        if isinstance(decode, UndecodableError):
            raise decode
        return decode

    def _schema(self, key: object) -> Schema:
        if isinstance(key, int):
            return self._request(partial(self._client.get_schema, key), f"schema {key}")
        return self._request(partial(self._client.get_schema_by_guid, str(key)), f"schema {key}")

    def _request(self, ask: Callable[[], T], what: str) -> T:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return ask()
        except SchemaRegistryError as error:
            if error.http_status_code == NOT_FOUND:
                raise UndecodableError(f"the registry has no {what}") from None
            raise self._as_error(error.error_message, error.http_status_code in FORBIDDEN) from None
        except LakeError:
            raise
        except Exception as error:  # of httpx or the libraries below it
            raise self._as_error(str(error) or type(error).__name__, False) from None

    def _as_error(self, reason: str, forbidden: bool) -> LakeError:
        reason, where = self.options.redacted(str(reason)), self.options.where
        if forbidden:
            fix = "correct the settings of authentication in [registry]"
            return DeclarationError(f"authentication failed at the schema registry: {reason}", where=where, fix=fix)
        what = f"the schema registry does not answer: {reason}"
        return Unavailable(what, where=where, fix="try again when it does; is its url right?")

    def _parsed(self, schema: Schema) -> avro_values.Decode:
        import avro.errors
        import avro.name
        import avro.schema

        if schema.schema_type not in {None, "AVRO"}:
            raise UndecodableError(f"its schema is {schema.schema_type}, not Avro")
        texts = [json.loads(text) for text in self._with_references(schema)]
        names = avro.name.Names()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", avro.errors.IgnoredLogicalType)
                parsed = [avro.schema.make_avsc_object(text, names) for text in texts][-1]
        except Exception as error:  # of any kind, for an invalid schema
            raise UndecodableError(f"its schema cannot be read ({error})") from None
        if avro_values.is_endless(parsed):
            raise UndecodableError("its schema has arrays of values without a size")
        return avro_values.decoder(parsed)

    def _with_references(self, schema: Schema, visited: set[tuple[str, int]] | None = None) -> Iterable[str]:
        visited = set() if visited is None else visited
        for reference in schema.references or ():
            subject, version = str(reference.subject), int(reference.version or 0)
            if (subject, version) not in visited:
                visited.add((subject, version))
                what = f"version {version} of {subject}, to which a schema refers"
                referenced = self._request(partial(self._client.get_version, subject, version), what)
                yield from self._with_references(referenced.schema, visited)
        yield str(schema.schema_str)


def headers_of(message: Message) -> Headers:
    return cast(Headers, message.headers() or ())
