"""Syntax tree of a Spark SQL expression, by positions in its text.

Spark checks the text. Tokens unknown here only separate parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

_TOKEN: Final = re.compile(
    r"""(?P<comment> --[^\n]* | /\*.*?\*/ )
    | [rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `[^`]*`
    | (?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w* | [\w.]+ | -> | :: | \|\| | <=> | => | <> | << | >>>? | [<>=!]=? | \S""",
    re.VERBOSE | re.DOTALL,
)
_COMPARISONS: Final = ("=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">=")
_PRECEDENCE: Final = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(_COMPARISONS, 4),
    **dict.fromkeys(("not", "in", "between", "is", "like", "ilike", "rlike", "regexp"), 4),
    **{"|": 5, "^": 6, "&": 7, "<<": 8, ">>": 8, ">>>": 8},
    **dict.fromkeys(("+", "-", "||"), 9),
    **dict.fromkeys(("*", "/", "%", "div"), 10),
}
_NOT, _COMPARISON, _SIGN = 3, 4, 10
_NO_OPERAND: Final = {*_PRECEDENCE, "when", "then", "else", "end", "as", "from", "for", "placing"}
_OPERAND: Final = re.compile(r"[\w.'\"`]")


@dataclass(frozen=True)
class SqlPart:
    """Expression from `begin` to `end`.

    made_by: function or operator, in small letters; "=" for a comparison, "->" for a lambda, "" for a name or literal
    conditions: parts that choose among the operands
    names: a lambda's parameters
    """

    begin: int
    end: int
    made_by: str = ""
    operands: tuple[SqlPart, ...] = ()
    conditions: tuple[SqlPart, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[SqlPart, ...]:
        return (*self.operands, *self.conditions)

    def within(self) -> Iterator[SqlPart]:
        """Yield it and all its parts, but not those of lambdas, which have names of their own."""
        yield self
        for part in self.parts:
            if part.made_by != "->":
                yield from part.within()


def parsed(sql: str) -> list[SqlPart]:
    return _SqlReader(sql).items("")


def _separate_conditions(call: SqlPart) -> SqlPart:
    """Separate operands and conditions of a call that chooses among values, as CASE does."""
    first, *others = call.operands or (None,)
    if first is None:
        return call
    if call.made_by in ("if", "nvl2"):
        return replace(call, operands=tuple(others), conditions=(first,))
    if call.made_by == "nullif":
        return _with_comparisons(replace(call, operands=(first,)), first, others)
    if call.made_by == "equal_null":
        return replace(call, made_by="=")
    if call.made_by == "decode" and len(others) > 1:
        pairs = len(others) // 2 * 2
        values = (*others[1:pairs:2], *others[pairs:])
        return _with_comparisons(replace(call, operands=values), first, others[:pairs:2])
    return call


def _with_comparisons(whole: SqlPart, compared: SqlPart, others: Sequence[SqlPart]) -> SqlPart:
    return replace(
        whole,
        conditions=tuple(replace(whole, made_by="=", operands=(compared, each), conditions=()) for each in others),
    )


class _SqlReader:
    def __init__(self, sql: str) -> None:
        self.tokens = [token for token in _TOKEN.finditer(sql) if not token["comment"]]
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at][0].lower() if self.at < len(self.tokens) else ""

    @property
    def begin(self) -> int:
        return self.tokens[self.at].start() if self.next else self.end

    @property
    def end(self) -> int:
        return self.tokens[self.at - 1].end() if self.at else 0

    def take(self, *expected: str) -> str:
        """Consume the next token if it is `expected`, or any; return it in small letters, else ""."""
        token = self.next
        if expected and token not in expected:
            return ""
        self.at += bool(token)
        return token

    def items(self, closing: str) -> list[SqlPart]:
        """Read expressions up to and including `closing`, or to the end; other tokens separate them."""
        items: list[SqlPart] = []
        while self.next and not (closing and self.take(closing)):
            before, item = self.at, self.expression()
            if self.take("=>"):  # the name of an argument
                continue
            if self.at > before:
                items.append(item)
            if self.take("as"):
                self._skip({",", closing})
            if self.next != closing:
                self.take(*([","] if self.at > before else []))
        return items

    def expression(self, above: int = 0) -> SqlPart:
        """Read an expression whose operators bind more closely than the level `above`."""
        left = self._prefix()
        while _PRECEDENCE.get(self.next, 0) > above:
            left = self._infix(left)
        return left

    def _prefix(self) -> SqlPart:
        begin = self.begin
        if sign := self.take("-", "+", "~"):
            operand = self.expression(_SIGN)
            return SqlPart(begin, self.end, "negative" if sign == "-" else sign, (operand,))
        if self.take("not", "!"):
            operand = self.expression(_NOT)
            return SqlPart(begin, self.end, "not", (operand,))
        return self._postfix(self._primary(begin))

    def _infix(self, left: SqlPart) -> SqlPart:
        operator = self.take()
        if operator == "not":
            operator = self.take()
        if operator == "in" and self.take("("):
            listed = self.items(")")
            return SqlPart(left.begin, self.end, "in", (left, *listed))
        if operator == "is":
            self.take("not")
            if not self.take("distinct"):
                self.take()
                return SqlPart(left.begin, self.end, "is", (left,))
            self.take("from")
            operator = "<=>"
        right = self.expression(_PRECEDENCE.get(operator, _COMPARISON))
        if operator == "between" and self.take("and"):
            bounds = [right, self.expression(_COMPARISON)]
            return _with_comparisons(SqlPart(left.begin, self.end, operator), left, bounds)
        return SqlPart(left.begin, self.end, "=" if operator in _COMPARISONS else operator, (left, right))

    def _primary(self, begin: int) -> SqlPart:
        if self.take("("):
            return self._brackets(begin)
        if self.take("case"):
            return self._case(begin)
        if not _OPERAND.match(self.next) or self.next in _NO_OPERAND:
            return SqlPart(begin, begin)
        name = self.take()
        if self.next == "->":
            return self._lambda(begin, (name,))
        if not self.take("("):
            return SqlPart(begin, self.end)
        operands = tuple(self.items(")"))
        return _separate_conditions(SqlPart(begin, self.end, name.rpartition(".")[2].strip("`"), operands))

    def _postfix(self, part: SqlPart) -> SqlPart:
        """Read an index, a field, a type, or the rest of a literal of several words."""
        while self.next:
            if self.take("["):
                part = SqlPart(part.begin, self.end, "[]", (part, *self.items("]")))
            elif self.take("::"):
                self._skip_type()
                part = SqlPart(part.begin, 0, "cast", (part,))
            elif self.next.startswith("."):
                self.take()
                part = SqlPart(part.begin, 0, ".", (part,))
            elif part.end > part.begin and _OPERAND.match(self.next) and self.next not in _NO_OPERAND:
                self.take()
            else:
                break
            part = replace(part, end=self.end)
        return part

    def _brackets(self, begin: int) -> SqlPart:
        items = tuple(self.items(")"))
        if self.next == "->":
            return self._lambda(begin, tuple(self._text(item) for item in items))
        return SqlPart(begin, self.end, "()" if len(items) == 1 else "struct", items)

    def _lambda(self, begin: int, names: tuple[str, ...]) -> SqlPart:
        self.take("->")
        body = self.expression()
        return SqlPart(begin, self.end, "->", (body,), names=names)

    def _case(self, begin: int) -> SqlPart:
        values: list[SqlPart] = []
        conditions: list[SqlPart] = []
        compared = None if self.next == "when" else self.expression()
        while self.take("when"):
            conditions.append(self.expression())
            if self.take("then"):
                values.append(self.expression())
        if self.take("else"):
            values.append(self.expression())
        self.take("end")
        whole = SqlPart(begin, self.end, "case", tuple(values), tuple(conditions))
        return whole if compared is None else _with_comparisons(whole, compared, conditions)

    def _skip(self, until: set[str]) -> None:
        depth = 0
        while self.next and (depth > 0 or self.next not in until):
            token = self.take()
            depth += sum(map(token.count, "(<")) - sum(map(token.count, ")>"))

    def _skip_type(self) -> None:
        self.take()
        while self.next in ("(", "<"):
            opened = self.take()
            self._skip({")" if opened == "(" else ">"})
            self.take(")", ">")

    def _text(self, part: SqlPart) -> str:
        return next(token[0] for token in self.tokens if token.start() == part.begin)
