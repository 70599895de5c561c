"""Parameters of a read, such as the format: from the query string, the body, or Accept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from starlette.requests import Request

from lake.errors import did_you_mean
from lake.read.sql import EditionChoice
from lake.serve.problems import Problem

DIGITS: Final = re.compile("[0-9]{1,18}")
LIMIT: Final = 10**18
MEDIA: Final[Mapping[str, str]] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
ACCEPTED: Final[Mapping[str, str]] = {
    "*/*": "json",
    "application/*": "json",
    "application/json": "json",
    "text/csv": "csv",
    "text/*": "csv",
    "application/x-ndjson": "jsonl",
    "application/jsonl": "jsonl",
    "application/vnd.apache.parquet": "parquet",
    "application/x-parquet": "parquet",
}


def negotiated_format(request: Request, named: object) -> str:
    if named is not None:
        if not isinstance(named, str) or named not in MEDIA:
            raise Problem("not-acceptable", f"no format {named!r}")
        return named
    accepted = request.headers.get("accept", "*/*")
    for _, kind in sorted(_weighed(accepted), key=lambda pair: -pair[0]):
        if kind in ACCEPTED:
            return ACCEPTED[kind]
    raise Problem("not-acceptable", f"found Accept: {accepted}")


def _weighed(accepted: str) -> Iterable[tuple[float, str]]:
    for part in accepted.split(","):
        kind, *parameters = (each.strip().lower() for each in part.split(";"))
        weights = [each.removeprefix("q=") for each in parameters if each.startswith("q=")]
        try:
            weight = float(weights[0]) if weights else 1.0
        except ValueError:
            weight = 0.0
        if weight > 0:
            yield weight, kind


def parameters(request: Request, *known: str) -> dict[str, str]:
    given = dict[str, str]()
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise Problem("bad-request", f"no parameter {name!r}: {did_you_mean(name, known)}")
        if name in given:
            raise Problem("bad-request", f"{name} is given twice")
        given[name] = value
    return given


def whole_number(name: str, value: object) -> int:
    if isinstance(value, str) and DIGITS.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LIMIT:
        return value
    raise Problem("bad-request", f"{name}={str(value)[:40]}: write a whole number")


def json_object(body: bytes) -> dict[str, Any]:
    """Parse one JSON object. Raises Problem for anything else, and for NaN or a repeated member."""
    try:
        value = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise Problem("bad-request", f"the body is not UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError):
        raise Problem("bad-request", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise Problem("bad-request", "the body is not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        name = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise Problem("bad-request", f"{name!r} is given twice in the body")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def edition_choice(given: Mapping[str, object]) -> EditionChoice:
    numbers = {name: whole_number(name, given[name]) for name in ("edition", "cut") if given.get(name) is not None}
    if len(numbers) > 1:
        raise Problem("bad-request", "edition and cut cannot be combined: use only one of them")
    return EditionChoice(numbers.get("edition"), numbers.get("cut"))
