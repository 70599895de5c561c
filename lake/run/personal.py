"""What is personal in a batch: whom it is about, and the keys under which it goes into the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lake.config import Settings
from lake.store import erasures, log, sealing
from lake.store.contracts import Contract
from lake.store.keys import open_store
from lake.store.scan import to_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ERASED: Final = "_erased"
BLANKED: Final = "of a person who was forgotten"


def sealable(spark: SparkSession, settings: Settings, contract: Contract, events: DataFrame) -> DataFrame:
    """Parsed `events` with the token and the key of the person each is about; a key is made for who has none.

    Of people who were forgotten, nothing personal is left in them: also of those whom damage took from the book of
    erasures, until a cut records them again. Raises DeclarationError where keys are lost.
    """
    store = log.key_store(settings, contract)
    gone = erasures.subjects(settings, contract.name) | store.destroyed(contract.name)
    told = sealing.tokened(spark, events, contract, store.secret)
    people = told.where("_reason IS NULL").select(sealing.SUBJECT).distinct().toArrow().column(sealing.SUBJECT)
    there = {token for token in people.to_pylist() if token is not None}
    store.make(contract.name, there - gone)
    living = log.keys_of(settings, contract)
    assert living is not None
    keys = living.filter(pc.is_in(living.column(sealing.SUBJECT), value_set=people.combine_chunks()))
    known = sealing.without_the_erased(sealing.with_keys(spark, told, keys), contract)
    erased = pa.table(
        {sealing.SUBJECT: pa.array(sorted(gone), pa.string()), ERASED: pa.array([True] * len(gone), pa.bool_())}
    )
    return known.join(to_frame(spark, erased), sealing.SUBJECT, "left")


def shown(contract: Contract, column: str, instead: str = "''") -> str:
    """SQL of what is kept of a `column` of a record that is refused: `instead` where it is of a forgotten person."""
    return f"CASE WHEN {ERASED} THEN {instead} ELSE {column} END" if contract.sealed else column


def extras(contract: Contract) -> list[str]:
    """SQL of the columns of a log that hold what the contract does not know, and the subject where there is one."""
    if not contract.sealed:
        return [sealing.EXTRA]
    place = sealing.place(contract, sealing.EXTRA)
    return [f"{sealing.sealed(sealing.EXTRA, place)} AS {sealing.EXTRA}", sealing.SUBJECT]


def sealed_with(settings: Settings, contract: Contract) -> dict[str, Any]:
    """What a batch's position says of the key store: which it is, its secret's fingerprint, how many people it knew."""
    if not contract.sealed:
        return {}
    store = open_store(settings)
    return {"keys": {"store": store.id, "secret": store.fingerprint, "subjects": store.count(contract.name)}}
