"""In which form an answer is given: as a query parameter, the end of an address, or the header Accept says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from starlette.requests import Request

from lake.errors import did_you_mean
from lake.http.problems import Problem
from lake.http.reading.shelf import Asked

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


def form(request: Request, named: str | None) -> str:
    """The form that is `named`, else the one that Accept likes best. Raises Problem where there is none such."""
    if named is not None:
        if named not in MEDIA:
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


def asked(given: Mapping[str, object]) -> Asked:
    """Which edition is asked for. Raises Problem for what is no number, and for both at once."""
    numbers: dict[str, int] = {}
    for name in ("edition", "cut"):
        value = given.get(name)
        if value is None:
            continue
        text = str(value)
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise Problem("bad-request", f"{name}={text[:40]}: write a whole number")
        numbers[name] = int(text)
    if len(numbers) > 1:
        raise Problem("bad-request", "edition and cut cannot be combined: use only one of them")
    return Asked(**numbers)
