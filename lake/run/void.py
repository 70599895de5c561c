"""Voiding: an accepted fact is taken out of every table from the next cut on, with a reason, and stays in its log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from lake.config import Settings
from lake.errors import DeclarationError
from lake.store import delta, voids
from lake.store.contracts import load_contract
from lake.store.voids import Place, Void


def void(settings: Settings, stream: str, places: Sequence[str], *, reason: str) -> list[Void]:
    """Voids the events of `stream` at `places` (`BATCH:BUCKET:OFFSET`), all or none.

    Raises DeclarationError for a place that is malformed, holds no event, or is void already.
    """
    load_contract(settings, stream)
    if not reason.strip():
        raise DeclarationError("a void needs a reason", fix='--reason "why it does not count"')
    found = [_place(text) for text in places]
    for place in found:
        _must_exist(settings, stream, place)
    return voids.record(settings, stream, found, reason=reason, at=datetime.now(UTC))


def _place(text: str) -> Place:
    parts = re.fullmatch(r"(\d+):(-?\d+):(\d+)", text)
    if parts is None:
        raise DeclarationError(f"{text!r} is no place of an event", fix="BATCH:BUCKET:OFFSET, e.g. 12:3:4711")
    batch, bucket, offset = map(int, parts.groups())
    return batch, bucket, offset


def _must_exist(settings: Settings, stream: str, place: Place) -> None:
    query = "SELECT 1 FROM t WHERE _batch = $1 AND _bucket = $2 AND _offset = $3"
    if not delta.rows(settings.log_path(stream), query, *place):
        raise DeclarationError(
            f"{stream} has no event at {':'.join(map(str, place))}",
            fix="`lake explain TABLE COLUMN=VALUE` shows the place of each event: BATCH:BUCKET:OFFSET",
        )
