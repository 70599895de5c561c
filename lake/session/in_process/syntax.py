"""Parser of Spark's SQL expressions; see `queries` for whole statements.

The grammar is that of the functions and operators that `functions` knows; other text raises Unsupported. Source:
SqlBaseParser.g4 of Spark 4.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from math import inf
from typing import Any, Final, TypeVar

from pyspark.sql import types as T

from lake.session.in_process import constants
from lake.session.in_process.mode import Unsupported, unsupported
from lake.session.in_process.tree import (
    Alias,
    Call,
    Cast,
    Lambda,
    Literal,
    Name,
    Node,
    Over,
    Sorted,
    Star,
    frame_of_rows,
)
from lake.session.in_process.types import BOOLEAN, TEXT, parsed_type

P = TypeVar("P")
SPACE: Final = r"(?:[ \t\r\n]|--(?:\\\n|[^\r\n])*|/\*(?!\+)(?:(?!/\*|\*/)[\s\S])*\*/)*+"
"""Space and comments, but hints and comments within comments."""
TOKEN: Final = re.compile(
    rf"""{SPACE}(?:
      (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?i:BD|[LSYDF])?(?![\w.]))
    | (?P<text>'(?:[^'\\]|\\.)*')
    | (?P<quoted>`(?:[^`]|``)+`)
    | (?P<word>[A-Za-z_]\w*)
    | (?P<comment>/\*)
    | (?P<sign><=>|<=|>=|<>|!=|==|->|\|\||[-+*/%(),.<>=&|^~\[\]!:])
    ){SPACE}""",
    re.VERBOSE | re.DOTALL,
)
BINARY_OPERATORS: Final = (("|",), ("^",), ("&",), ("+", "-", "||"), ("*", "/", "%", "div"))
"""Operators from the loosest to the tightest."""
WORDS: Final = {"true": Literal(True, BOOLEAN), "false": Literal(False, BOOLEAN), "null": Literal(None, T.NullType())}
COMPARISONS: Final = {"=": "==", "<>": "!=", **{sign: sign for sign in ("==", "<=>", "!=", "<", "<=", ">", ">=")}}
NO_ALIASES: Final = frozenset(
    {"anti", "cross", "except", "full", "inner", "intersect", "join", "lateral", "left", "minus", "natural", "on"}
    | {"right", "semi", "setminus", "union", "using", "from", "where", "group", "having", "order", "limit", "offset"}
    | {"cluster", "distribute", "sort", "window", "pivot", "unpivot", "tablesample", "for", "version", "with"}
)
"""Words that are no names of relations, and of columns only after `as`, unless they are quoted."""
NOT_NAMES: Final = frozenset(
    {"and", "or", "not", "is", "in", "between", "like", "rlike", "ilike", "regexp", "exists", "any", "all"}
    | {"case", "when", "then", "else", "end", "select", "distinct", "from"}
)
"""Words that are no names of columns, unless they are quoted."""


@lru_cache(4_096)
def parse(text: str) -> Node:
    """Parse an expression, with its alias if it has one. Raises Unsupported."""
    parser = Parser(text)
    node = parser.aliased()
    parser.end()
    return node


@lru_cache(4_096)
def name_parts(text: str) -> tuple[str, ...]:
    """Parse the name of a column: `a`, `a.b` or, in quotes, any text."""
    parser = Parser(text)
    node = parser.primary()
    parser.end()
    if not isinstance(node, Name):
        raise unsupported(f"the name {text}")
    return node.parts


class Parser:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens = list[tuple[str, str]]()
        if "${" in text:
            raise unsupported("variables in a text")
        place = 0
        while place < len(text):
            found = TOKEN.match(text, place)
            if found is None or found.lastgroup in (None, "comment"):
                raise unsupported(f"the text {text[place : place + 100]}")
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
            place = found.end()

    @property
    def kind(self) -> str:
        """Kind of the next token, empty at the end."""
        return self.tokens[self.at][0] if self.at < len(self.tokens) else ""

    @property
    def word(self) -> str:
        """The next token in lower case if it is a word or a sign, else empty."""
        return self.tokens[self.at][1].lower() if self.kind in ("word", "sign") else ""

    @property
    def unknown(self) -> Unsupported:
        return unsupported(f"the expression {self.text}")

    def take(self, *words: str) -> str:
        word = self.word
        if not word or word not in words:
            return ""
        self.at += 1
        return word

    def need(self, *words: str) -> None:
        for word in words:
            if not self.take(word):
                raise self.unknown

    def bracketed(self, part: Callable[[], P]) -> P:
        """Parse a part between brackets."""
        self.need("(")
        made = part()
        self.need(")")
        return made

    def end(self) -> None:
        if self.kind:
            raise self.unknown

    def next(self) -> tuple[str, str]:
        if not self.kind:
            raise self.unknown
        self.at += 1
        return self.tokens[self.at - 1]

    def aliased(self) -> Node:
        node = self.expression()
        if self.take("as") or self.begins_alias:
            return Alias(node, self.identifier())
        return node

    @property
    def begins_alias(self) -> bool:
        return self.kind == "quoted" or (self.kind == "word" and self.word not in NO_ALIASES)

    def identifier(self) -> str:
        kind, text = self.next()
        if kind not in ("word", "quoted"):
            raise self.unknown
        return text[1:-1].replace("``", "`") if kind == "quoted" else text

    def expression(self) -> Node:
        return self._chain("or", lambda: self._chain("and", self._negated))

    def _chain(self, word: str, part: Callable[[], Node]) -> Node:
        node = part()
        while self.take(word):
            node = Call(word, (node, part()))
        return node

    def _negated(self) -> Node:
        return Call("not", (self._negated(),)) if self.take("not", "!") else self._predicate()

    def _predicate(self) -> Node:
        node = self._binary(0)
        while True:
            if sign := self.take(*COMPARISONS):
                node = Call(COMPARISONS[sign], (node, self._binary(0)))
            elif self.take("is"):
                return self._is(node)
            elif self.word in ("not", "between", "in", "like", "rlike", "regexp"):
                negated = bool(self.take("not"))
                node = self._membership(node)
                return Call("not", (node,)) if negated else node
            else:
                return node

    def _is(self, node: Node) -> Node:
        negated = bool(self.take("not"))
        if self.take("null"):
            return Call("isnotnull" if negated else "isnull", (node,))
        if self.take("distinct"):
            self.need("from")
            same = Call("<=>", (node, self._binary(0)))
            return same if negated else Call("not", (same,))
        if word := self.take("true", "false"):
            same = Call("<=>", (node, WORDS[word]))
            return Call("not", (same,)) if negated else same
        raise self.unknown

    def _membership(self, node: Node) -> Node:
        if self.take("between"):
            least = self._binary(0)
            self.need("and")
            return Call("and", (Call(">=", (node, least)), Call("<=", (node, self._binary(0)))))
        if self.take("in"):
            self.need("(")
            if not (values := self._list(self.expression)):
                raise self.unknown
            return Call("in", (node, *values))
        if self.take("rlike", "regexp"):
            return Call("rlike", (node, self._binary(0)))
        self.need("like")
        return Call("like", (node, self._binary(0)))

    def _binary(self, level: int) -> Node:
        if level == len(BINARY_OPERATORS):
            return self._unary()
        node = self._binary(level + 1)
        while sign := self.take(*BINARY_OPERATORS[level]):
            node = Call("concat" if sign == "||" else sign, (node, self._binary(level + 1)))
        return node

    def _unary(self) -> Node:
        if self.take("-"):
            if self.kind == "number":
                return self._postfix(constants.number(self.next()[1], "-"))
            return Call("negative", (self._unary(),))
        return Call("positive", (self._unary(),)) if self.take("+") else self._postfix(self.primary())

    def _postfix(self, node: Node) -> Node:
        while sign := self.take(".", "["):
            if sign == "[":
                node = Call("[]", (node, self.expression()))
                self.need("]")
            else:
                node = Call(".", (node, Literal(self.identifier(), TEXT)))
        return node

    def primary(self) -> Node:  # noqa: PLR0911 one return a kind
        kind, text = self.next()
        word = text.lower()
        if kind == "number":
            return constants.number(text)
        if kind == "text":
            return Literal(constants.unescaped(text), TEXT)
        if text == "(":
            return self._bracketed()
        if text == "*":
            return self._star(())
        if kind == "word" and word != "in" and self.take("("):
            return self._call(word)
        if kind == "word" and word in WORDS:
            return WORDS[word]
        if kind == "word" and word == "case":
            return self._case()
        if kind == "word" and word in ("date", "timestamp"):
            return constants.time(word, *self.next())
        if kind == "word" and word == "interval":
            return constants.interval(*self.next(), self.identifier())
        if kind == "sign" or (kind == "word" and word in NOT_NAMES):
            raise self.unknown
        self.at -= 1
        return self._name()

    def _name(self) -> Node:
        parts = [self.identifier()]
        if self.take("->"):
            return Lambda(tuple(parts), self.expression())
        while self.take("."):
            if self.take("*"):
                return self._star(tuple(parts))
            parts.append(self.identifier())
        return Name(tuple(parts))

    def _star(self, of: tuple[str, ...]) -> Star:
        if not self.take("except"):
            return Star(of)
        self.need("(")
        names = self._list(self.primary)
        if not names or not all(isinstance(name, Name) and len(name.parts) == 1 for name in names):
            raise self.unknown
        return Star(of, tuple(name.parts[0] for name in names))

    def _bracketed(self) -> Node:
        nodes: tuple[Node, ...] = self._list(self.expression)
        if self.take("->"):
            names = [node.parts for node in nodes if isinstance(node, Name)]
            if len(names) < len(nodes) or any(len(parts) > 1 for parts in names):
                raise self.unknown
            return Lambda(tuple(name for (name,) in names), self.expression())
        if len(nodes) != 1 or isinstance(nodes[0], Star):
            raise self.unknown
        return nodes[0]

    def _list(self, part: Callable[[], Any]) -> tuple[Any, ...]:
        """Parse what remains of a list in brackets."""
        nodes = []
        while not self.take(")"):
            nodes.append(part())
            if bool(self.take(",")) == (self.word == ")"):
                raise self.unknown
        return tuple(nodes)

    def _call(self, name: str) -> Node:
        if name in ("cast", "try_cast"):
            of = self.expression()
            self.need("as")
            return Cast(of, self._type(), may_fail=name == "cast")
        if name == "extract":
            part = Literal(self.identifier(), TEXT)
            self.need("from")
            return Call(name, (part, *self._list(self.expression)))
        distinct = bool(self.take("distinct"))
        arguments, where = self._list(self.aliased if name == "struct" else self.expression), None
        if self.take("filter"):
            where = self.bracketed(self._where)
        if ignores_nulls := bool(self.take("ignore")):
            self.need("nulls")
        call = Call(name, arguments, ignores_nulls, where, distinct)
        if not self.take("over"):
            return call
        return self.bracketed(lambda: self._over(call))

    def _where(self) -> Node:
        self.need("where")
        return self.expression()

    def _over(self, call: Call) -> Over:
        by, order = self.terms_by("partition", self.expression), self.terms_by("order", self.sorted)
        return Over(call, tuple(by), tuple(order), self._frame() if self.take("rows") else "")

    def _frame(self) -> str:
        self.need("between")
        first = self._place()
        self.need("and")
        return frame_of_rows(first, self._place())

    def _place(self) -> float:
        kind, text = self.next()
        if not (text.isdigit() if kind == "number" else text.lower() in ("unbounded", "current")):
            raise self.unknown
        side = self.take("row") if text.lower() == "current" else self.take("preceding", "following")
        if not side:
            raise self.unknown
        rows = int(text) if kind == "number" else inf if text.lower() == "unbounded" else 0
        return -rows if side == "preceding" else rows

    def terms_by(self, word: str, part: Callable[[], P]) -> list[P]:
        if not self.take(word):
            return []
        self.need("by")
        return self.terms(part)

    def terms(self, part: Callable[[], P]) -> list[P]:
        terms = [part()]
        while self.take(","):
            terms.append(part())
        return terms

    def sorted(self) -> Sorted:
        node, descending = self.expression(), self.take("asc", "desc") == "desc"
        nulls_first = not descending
        if self.take("nulls"):
            if not (place := self.take("first", "last")):
                raise self.unknown
            nulls_first = place == "first"
        return Sorted(node, descending, nulls_first)

    def _type(self) -> T.DataType:
        first, depth = self.at, 1
        while depth:
            depth += {"(": 1, ")": -1}.get(self.next()[1], 0)
        return parsed_type("".join(text + " " * (kind == "word") for kind, text in self.tokens[first : self.at - 1]))

    def _case(self) -> Node:
        of = None if self.word == "when" else self.expression()
        branches = list[Node]()
        while self.take("when"):
            condition = self.expression()
            self.need("then")
            branches += [condition if of is None else Call("==", (of, condition)), self.expression()]
        branches += [self.expression()] if self.take("else") else []
        self.need("end")
        return Call("when", tuple(branches))
