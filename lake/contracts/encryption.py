"""Sealing: the personal fields of an event, readable as long as the key of the person they are about lives.

AES-256 in Galois/Counter mode (NIST SP 800-38D) by the engine's own functions: base64 of 12 bytes of nonce, the
ciphertext, 16 bytes of tag; the place of the column is authenticated with it. The nonce is made of key, place and value
(as in the synthetic IV of RFC 5297): the same value of one person in one column is the same text, so a batch that is
tried again is the same, and nothing is known of a value but where it is repeated. Subjects and ids are told by
HMAC-SHA-256 (RFC 2104) under the key store's own key: equal where they are equal, and no one's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lake.contracts.event_id import literal, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from lake.contracts.contract import Contract

SUBJECT: Final = "_subject"
"""The column of a log that holds the token of the person whom an event is about."""
KEY: Final = "_key"
EXTRA: Final = "_extra"
BLOCK: Final = 64


def place(contract: Contract, column: str) -> str:
    """SQL of what is authenticated with a value: where it belongs."""
    return f"encode({literal(f'{contract.name}.{column}')}, 'UTF-8')"


def sealed(text: str, place: str) -> str:
    """SQL of the sealed form of `text`, null where there is no key."""
    nonce = f"unhex(left(sha2(concat({KEY}, {place}, encode({text}, 'UTF-8')), 256), 24))"
    return f"base64(aes_encrypt(encode({text}, 'UTF-8'), {KEY}, 'GCM', 'DEFAULT', {nonce}, {place}))"


def opened(column: str, place: str) -> str:
    """SQL of the text that `column` holds sealed, null where there is no key."""
    return f"decode(aes_decrypt(unbase64({column}), {KEY}, 'GCM', 'DEFAULT', {place}), 'UTF-8')"


def pads(secret: bytes) -> pa.Table:
    """The two blocks that HMAC puts before what it digests; in a frame, so that no query plan shows them."""
    import pyarrow as pa

    block = secret.ljust(BLOCK, b"\0")
    inner, outer = (pa.array([bytes(b ^ mask for b in block)], pa.binary()) for mask in (0x36, 0x5C))
    return pa.table({"_inner": inner, "_outer": outer})


def token(text: str) -> str:
    """SQL of the HMAC of `text`, in a frame that has the columns of `pads`."""
    return f"sha2(concat(_outer, unhex(sha2(concat(_inner, encode({text}, 'UTF-8')), 256))), 256)"


def of_subject(contract: Contract) -> str:
    """SQL of what is digested for the subject of an event: a person is somebody of one stream."""
    return f"concat({literal(contract.name + ':')}, cast({quoted(contract.subject or '')} AS string))"


def tokened(rows: DataFrame, contract: Contract, pads: DataFrame) -> DataFrame:
    """`rows` of parsed events with SUBJECT, and with an `_id` that nobody can guess without the secret of `pads`."""
    digested = rows.crossJoin(pads)
    kept = [quoted(name) for name in rows.columns if name != "_id"]
    return digested.selectExpr(*kept, f"{token('_id')} AS _id", f"{token(of_subject(contract))} AS {SUBJECT}")


def with_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """`rows` with the KEY of their subject, null where it has none."""
    return rows.join(keys, SUBJECT, "left")


def without_the_erased(rows: DataFrame, contract: Contract) -> DataFrame:
    """`rows` of parsed events with their KEY: of people without one, nothing personal is left."""
    hidden = {*contract.sealed, EXTRA}
    return rows.selectExpr(
        *(
            f"CASE WHEN {KEY} IS NOT NULL THEN {quoted(c)} END AS {quoted(c)}" if c in hidden else quoted(c)
            for c in rows.columns
        )
    )
