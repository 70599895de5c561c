"""Exact sums of integers and decimals, in any order of the rows, and their quotients.

Spark's decimals have at most 38 digits. A sum that exceeds them on its way fails or not by the order of adding. So a
sum stays *open* while rows are added: a number with room for all of them, or a pair of numbers `high` * 10^19 + `low`
in units of the last decimal place. It is *closed* at the end, to a type that it may not fit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

DIGITS: Final = 38
HALF: Final = 19  # digits of `low`
BASE: Final = f"{10**HALF}BD"
ROOMY: Final = 24  # digits of decimals whose sum has 34 in Spark: two such sums, added, fit 36
INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")
WHOLE: Final = "decimal(38, 0)"
PAIR: Final = f"struct<high: {WHOLE}, low: {WHOLE}>"
SHORT, SHORT_SCALE = 17, 12  # most digits of a scaled dividend, and most places of a quotient, in a bigint
ONES: Final = " ".join(f"when {places} then {10**places}L" for places in range(7))
BLOCK: Final = 18  # digits of a quotient found at once, in a bigint

_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")


@dataclass(frozen=True)
class SumType:
    type: str

    @property
    def digits(self) -> tuple[int, int]:
        """Precision and scale; 0, 0 for integers."""
        decimal = _DECIMAL.fullmatch(self.type)
        return (int(decimal[1]), int(decimal[2])) if decimal else (0, 0)

    @property
    def is_wide(self) -> bool:
        return self.digits[0] > ROOMY

    @property
    def open(self) -> str:
        precision, scale = self.digits
        if self.type == "bigint":
            return WHOLE
        return PAIR if self.is_wide else f"decimal({precision + 12}, {scale})" if precision else "bigint"

    @property
    def closed(self) -> str:
        """SQL type of a closed sum with all digits of an open one, up to 38."""
        precision, scale = self.digits
        return f"decimal({min(precision + 10, DIGITS)},{scale})" if precision else self.open

    def fill(self, of: str) -> str:
        """Return a SQL aggregate, the open sum of `of` over signed rows; zero for no values."""
        if not self.is_wide:
            number = f"cast({of} as {self.open})" if self.type in INTEGERS or self.digits[0] else of
            return f"cast(coalesce({signed_sum(number)}, 0) as {self.open})"
        units = self._units(of)
        low, high = signed_sum(f"({units} % {BASE})"), signed_sum(cut_off(units))
        return _pair(f"coalesce({high}, 0)", f"coalesce({low}, 0)")

    def opened(self, closed: str) -> str:
        """Return SQL of a closed sum as an open one; zero for null."""
        if not self.is_wide:
            return f"coalesce(cast({closed} as {self.open}), cast(0 as {self.open}))"
        return let("u", f"coalesce({self._units(closed)}, 0BD)", _pair(cut_off("u"), f"u % {BASE}"))

    def added(self, a: str, b: str) -> str:
        if self.is_wide:
            return _pair(f"{a}.high + {b}.high", f"{a}.low + {b}.low")
        return f"cast({a} + {b} as {self.open})"

    def fitted(self, open_: str, type_: str) -> str:
        """Return SQL of an open sum as `type_`; null if it does not fit."""
        if not self.is_wide:
            return f"try_cast({open_} as {type_})"
        negative = f"p.high + {cut_off(f'(p.low - pmod(p.low, {BASE}))')} < 0"
        size = let("m", f"if({negative}, {_pair('-p.high', '-p.low')}, p)", digits(["m.high", "m.low"]))
        return let("p", open_, f"try_cast(concat(if({negative}, '-', ''), {size}, 'e-{self.digits[1]}') as {type_})")

    def _units(self, number: str) -> str:
        scale = self.digits[1]
        units = f"concat(cast({number} as string), 'e{scale}')" if scale else number
        return f"cast({units} as {WHOLE})"


def let(name: str, value: str, body: str) -> str:
    """Return SQL of `body`, in which `name` stands for `value`, computed once."""
    return f"transform(array({value}), {name} -> {body})[0]"


def digits(parts: list[str]) -> str:
    """Return SQL of the decimal digits of a nonnegative number from its parts at powers of 10^19, greatest first.

    The parts are decimals without places, of any sign and size.
    """
    step = (
        f"named_struct('carry', {cut_off(f'(x + s.carry - pmod(x + s.carry, {BASE}))')},"
        f" 'text', concat(lpad(cast(cast(pmod(x + s.carry, {BASE}) as {WHOLE}) as string), {HALF}, '0'), s.text))"
    )
    items = ", ".join(f"cast({part} as {WHOLE})" for part in reversed(parts))
    start = f"named_struct('carry', cast(0 as {WHOLE}), 'text', '')"
    return f"aggregate(array({items}), {start}, (s, x) -> {step}, s -> concat(cast(s.carry as string), s.text))"


def divided(text: str, by: str, places: int) -> str:
    """Return SQL of the digits of the quotient of a number, given by its digits, and a bigint above zero.

    `places` digits follow those of a whole number; the rest is cut off. Source: Knuth, The Art of Computer Programming,
    volume 2, 4.3.1, exercise 16 (division by one digit of a base), with the base 10^18.
    """
    padded = f"concat(repeat('0', pmod(-length(t) - {places}, {BLOCK})), t, '{'0' * places}')"
    block = f"cast(substring(d, {BLOCK} * i + 1, {BLOCK}) as {WHOLE})"
    step = (
        f"aggregate(array(cast(s.rest * {10**BLOCK}BD + {block} as {WHOLE})), s,"
        f" (s, v) -> named_struct('rest', cast(v % n as {WHOLE}),"
        f" 'text', concat(s.text, lpad(cast(v div n as string), {BLOCK}, '0'))))"
    )
    start = f"named_struct('rest', cast(0 as {WHOLE}), 'text', '')"
    found = f"aggregate(sequence(0, length(d) div {BLOCK} - 1), {start}, (s, i) -> {step}, s -> s.text)"
    at_once = f"cast(cast(d as {WHOLE}) div n as string)"  # one block, as for most numbers
    either = f"if(length(d) = {BLOCK}, {at_once}, {found})"
    return let("t", text, let("n", f"cast({by} as decimal(19, 0))", let("d", padded, either)))


def mean(total: str, count: str, scale: int) -> str:
    """Return SQL of a decimal or integer divided by a bigint above zero, as decimal(38, `scale`), half up.

    Rounded once. Null if the divisor is zero or null, or if the quotient does not fit.
    """
    places = "if(instr(x, '.') > 0, length(x) - instr(x, '.'), 0)"
    quotient = divided("regexp_replace(x, '[-.]', '')", count, scale + 1)
    number = f"concat(if(x like '-%', '-', ''), {quotient}, 'e-', {places} + {scale + 1})"
    found = f"try_cast({number} as decimal(38, {scale}))"
    if scale <= SHORT_SCALE:
        either = f"if({_is_short(count, scale)}, {_of_short(count, scale)}, {found})"
        found = let("p", f"case {places} {ONES} end", either)
    by_text = let("x", f"coalesce(cast({total} as string), '0')", found)
    return f"if({count} > 0, {by_text}, null)"


def _is_short(count: str, scale: int) -> str:
    """Return SQL, true if the quotient of the number with text x is found in bigints."""
    return f"length(x) <= {SHORT - scale} and {count} <= 10000000000 and p is not null"


def _of_short(count: str, scale: int) -> str:
    """Return SQL of that quotient; p is ten to the number of its decimal places."""
    divisor = f"({count} * p)"
    rounded = f"(2 * abs(u) * {10**scale}L + {divisor}) div (2 * {divisor})"
    unit = f"{Decimal(1).scaleb(-scale):f}BD"
    value = f"cast(cast(if(u < 0, -({rounded}), {rounded}) as decimal(19, 0)) * {unit} as decimal(38, {scale}))"
    return let("u", "cast(replace(x, '.', '') as bigint)", value)


def limbs(high: str, low: str) -> str:
    """Return SQL of an array: `high` * 10^19 + `low`, nonnegative, in three parts by powers of 10^19, least first."""
    carried = let("h", f"{high} + {cut_off(low)}", f"array({low} % {BASE}, h % {BASE}, {cut_off('h')})")
    return f"cast({carried} as array<{WHOLE}>)"


def signed_sum(of: str) -> str:
    """Return a SQL aggregate over signed rows: the sum of `of`, which has at most 34 digits."""
    return f"sum(if(_sign < 0, -{of}, {of}))"


def cut_off(number: str) -> str:
    return f"cast(({number} - {number} % {BASE}) / {BASE} as {WHOLE})"


def _pair(high: str, low: str) -> str:
    return f"named_struct('high', cast({high} as {WHOLE}), 'low', cast({low} as {WHOLE}))"
