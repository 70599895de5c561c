"""In which form an answer is given: as a query parameter, the end of an address, or the header Accept says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn

from starlette.requests import Request

from lake.errors import did_you_mean
from lake.http.problems import Problem
from lake.http.reading.shelf import Asked

DIGITS: Final = re.compile("[0-9]{1,18}")
LIMIT: Final = 10**18
MEDIA: Final[Mapping[str, str]] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
"""The media type of each form; the first is what anybody gets who does not say."""
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


def form(request: Request, named: object) -> str:
    """The form that is `named`, else the one that Accept likes best. Raises Problem where there is none such."""
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
    """The query parameters. Raises Problem for one that is not `known`, or is given twice."""
    given = dict[str, str]()
    for name, value in request.query_params.multi_items():
        if name not in known:
            raise Problem("bad-request", f"no parameter {name!r}: {did_you_mean(name, known)}")
        if name in given:
            raise Problem("bad-request", f"{name} is given twice")
        given[name] = value
    return given


def whole_number(name: str, value: object) -> int:
    """Return a parameter, which is text or JSON, as a whole number. Raise Problem if it is none."""
    if isinstance(value, str) and DIGITS.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LIMIT:
        return value
    raise Problem("bad-request", f"{name}={str(value)[:40]}: write a whole number")


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object that a body is. Raise Problem for anything else: JSON has no NaN and no member twice."""
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


def asked(given: Mapping[str, object]) -> Asked:
    """Which edition is asked for. Raises Problem for what is no number, and for both at once."""
    numbers = {name: whole_number(name, given[name]) for name in ("edition", "cut") if given.get(name) is not None}
    if len(numbers) > 1:
        raise Problem("bad-request", "edition and cut cannot be combined: use only one of them")
    return Asked(**numbers)
