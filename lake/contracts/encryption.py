"""SQL that encrypts personal fields with the key of the person they are about.

AES-256-GCM (NIST SP 800-38D): base64 of 12 bytes of nonce, ciphertext, 16 bytes of tag, with the column's place as
authenticated data. The nonce is derived from key, place and value (as the synthetic IV of RFC 5297), so a repeated
batch is identical. Subjects and ids become HMAC-SHA-256 (RFC 2104) tokens under the key store's secret.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lake.contracts.expressions import literal, quoted
from lake.lazy import DataFrame, pa

if TYPE_CHECKING:
    from lake.contracts.contract import Contract

SUBJECT: Final = "_subject"
"""Token of the person an event is about."""
KEY: Final = "_key"
EXTRA: Final = "_extra"
BLOCK: Final = 64


def place(contract: Contract, column: str) -> str:
    return f"encode({literal(f'{contract.name}.{column}')}, 'UTF-8')"


def encrypted_sql(text: str, place: str) -> str:
    nonce = f"unhex(left(sha2(concat({KEY}, {place}, encode({text}, 'UTF-8')), 256), 24))"
    return f"base64(aes_encrypt(encode({text}, 'UTF-8'), {KEY}, 'GCM', 'DEFAULT', {nonce}, {place}))"


def decrypted_sql(column: str, place: str) -> str:
    return f"decode(aes_decrypt(unbase64({column}), {KEY}, 'GCM', 'DEFAULT', {place}), 'UTF-8')"


def hmac_pads(secret: bytes) -> pa.Table:
    """Return the padded key blocks of HMAC, in a table so that no query plan shows them."""
    block = secret.ljust(BLOCK, b"\0")
    inner, outer = (pa.array([bytes(b ^ mask for b in block)], pa.binary()) for mask in (0x36, 0x5C))
    return pa.table({"_inner": inner, "_outer": outer})


def _hmac_sql(text: str) -> str:
    return f"sha2(concat(_outer, unhex(sha2(concat(_inner, encode({text}, 'UTF-8')), 256))), 256)"


def with_tokens(rows: DataFrame, contract: Contract, hmac_pads: DataFrame) -> DataFrame:
    digested = rows.crossJoin(hmac_pads)
    kept = [quoted(name) for name in rows.columns if name != "_id"]
    person = f"concat({literal(contract.name + ':')}, cast({quoted(contract.subject or '')} AS string))"
    return digested.selectExpr(*kept, f"{_hmac_sql('_id')} AS _id", f"{_hmac_sql(person)} AS {SUBJECT}")


def with_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    return rows.join(keys, SUBJECT, "left")


def mask_erased(rows: DataFrame, contract: Contract) -> DataFrame:
    hidden = {*contract.sealed, EXTRA}
    return rows.selectExpr(
        *(
            f"CASE WHEN {KEY} IS NOT NULL THEN {quoted(name)} END AS {quoted(name)}" if name in hidden else quoted(name)
            for name in rows.columns
        )
    )
