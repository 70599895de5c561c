"""Bit masks of the fields that a record lacks: one integer column for every 62 optional fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lake.contracts.fields import Field

if TYPE_CHECKING:
    from lake.contracts.contract import Contract

LACKS: Final = "_lacks"
BITS: Final = 62


def optional_fields(contract: Contract) -> list[Field]:
    """Return the fields that a record may lack."""
    if contract.envelope:
        return []
    return [field for field in contract.fields if not field.is_fact and (field.nullable or field.has_default)]


def masks(contract: Contract) -> dict[str, list[Field]]:
    """Return the fields of each column in the order of their bits, the lowest first."""
    fields = optional_fields(contract)
    return {f"{LACKS}{n}": fields[n : n + BITS] for n in range(0, len(fields), BITS)}
