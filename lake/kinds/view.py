"""View: any query over the inputs, evaluated again for the keys that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from attrs import field, frozen
from attrs.converters import optional

from lake.errors import DeclarationError
from lake.kinds.columns import names, visible
from lake.kinds.kind import Kind
from lake.lazy import DataFrame


@frozen(kw_only=True)
class View(Kind):
    """Rows that the function returns, key by key.

    key: the columns of locality; () makes the whole table one key, as a ranking needs
    identity: the columns that identify a row; by default the key
    on: {input: {key column: SQL over the input's row}}. A key column that an input neither has nor maps does not
        restrict it
    recursive: the query may be recursive; the key must be empty

    Example:
        View((), identity="player")
        View("customer", identity=["customer", "day"], on={"orders": {"customer": "buyer"}})
        View((), identity=["part", "component"], recursive=True)
    """

    name: ClassVar[str] = "View"
    version: ClassVar[int] = 1
    inputs: ClassVar[tuple[int, int]] = (1, 99)
    absorbs: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = False

    key: tuple[str, ...] = field(converter=names, kw_only=False)
    _identity: tuple[str, ...] | None = field(converter=optional(names), default=None)
    on: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    recursive: bool = False

    def __attrs_post_init__(self) -> None:
        if self.recursive and self.key:
            raise DeclarationError("a recursive query has no key", fix='View(key=(), identity="…")')

    @property
    def identity(self) -> tuple[str, ...]:
        return self.key if self._identity is None else self._identity

    def ordered_within(self, side: int = 0, /) -> list[tuple[str, ...]]:
        return []  # a query reads log order only from columns of the log that it names

    def requires(self, side: int = 0, /) -> dict[str, str]:
        return dict.fromkeys(self.identity, "identity") | dict.fromkeys(self.key, "key")

    def key_of(self, source: str, columns: Sequence[str]) -> dict[str, str]:
        given = self.on.get(source, {})
        return {k: given.get(k, f"`{k}`") for k in self.key if k in given or k in columns}

    def evaluate(self, rows: DataFrame) -> DataFrame:
        return rows.select(*visible(rows.columns))
