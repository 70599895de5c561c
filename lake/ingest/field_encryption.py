"""Encryption of personal fields in a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lake import cost
from lake.config import Settings
from lake.contracts import encryption
from lake.contracts.contract import Contract
from lake.lazy import DataFrame, SparkSession, pa
from lake.store import erasures
from lake.store.keys import open_store
from lake.store.log import Log
from lake.store.scan import on_disk, spooled, to_arrow, to_frame

ERASED: Final = "_erased"
BLANKED: Final = "of a person who was forgotten"


def with_subject_keys(
    spark: SparkSession, settings: Settings, contract: Contract, events: DataFrame, records: int
) -> DataFrame:
    """Add each person's token and key to the parsed `events`, `records` in number. New people get a key.

    Personal values of erased people are removed, also if only the key store knows of the erasure. Raises
    DeclarationError if keys are lost.
    """
    store = Log(settings, contract.name).key_store()
    erased = erasures.subjects(settings, contract.name) | store.destroyed(contract.name)
    tokened = encryption.with_tokens(events, contract, to_frame(spark, encryption.hmac_pads(store.secret)))

    def keys() -> Iterator[pa.Table]:
        for people in _people(tokened.where("_reason IS NULL"), records):
            living = people - erased
            store.make(contract.name, living)
            yield store.keys_of(contract.name, living)

    keyed = encryption.mask_erased(encryption.with_keys(tokened, spooled(spark, keys())), contract)
    flags = pa.table(
        {encryption.SUBJECT: pa.array(sorted(erased), pa.string()), ERASED: pa.array([True] * len(erased), pa.bool_())}
    )
    return keyed.join(to_frame(spark, flags), encryption.SUBJECT, "left")


def _people(events: DataFrame, records: int) -> Iterator[set[str]]:
    token = encryption.SUBJECT
    people = events.select(token).where(f"{token} IS NOT NULL").distinct()
    if records <= cost.PEOPLE_AT_ONCE:
        yield {*to_arrow(people).column(token).to_pylist()}
        return
    people = on_disk(people)
    parts = max(1, -(-people.count() // cost.PEOPLE_AT_ONCE))
    for number in range(parts):
        # A token is a digest: its first digits put about as many people into each part.
        part = people.where(f"cast(conv(left({token}, 8), 16, 10) AS bigint) % {parts} = {number}")
        yield {*to_arrow(part).column(token).to_pylist()}


def blanked_sql(contract: Contract, column: str, replacement: str = "''") -> str:
    return f"CASE WHEN {ERASED} THEN {replacement} ELSE {column} END" if contract.sealed else column


def extra_columns_sql(contract: Contract) -> list[str]:
    if not contract.sealed:
        return [encryption.EXTRA]
    place = encryption.place(contract, encryption.EXTRA)
    return [f"{encryption.encrypted_sql(encryption.EXTRA, place)} AS {encryption.EXTRA}", encryption.SUBJECT]


def key_store_state(settings: Settings, contract: Contract) -> dict[str, Any]:
    """Return a commit's entry `keys`: store, secret (fingerprint), subjects (number of people)."""
    if not contract.sealed:
        return {}
    store = open_store(settings)
    return {"keys": {"store": store.id, "secret": store.fingerprint, "subjects": store.count(contract.name)}}
