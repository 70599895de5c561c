"""Python file below `jobs/`: its fingerprint, its imports, and the faults in its syntax tree."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeGuard

from lake.contracts.declared_text import declared_text
from lake.contracts.determinism import code_of, is_nondeterministic, texts_of
from lake.errors import DeclarationError

ORDER_DEPENDENT: Final = frozenset(
    {"first", "last", "first_value", "last_value", "any_value", "mode"}
    | {"collect_list", "array_agg", "listagg", "string_agg"}
)
SORTERS: Final = frozenset({"sort_array", "array_sort"})
# Sketches whose result depends on the order of updates.
SKETCHES: Final = re.compile(r"^(kll_sketch|hll_sketch|hll_union|theta_|approx_percentile|percentile_approx)")

# Functions of PySpark whose texts are values or names, not SQL.
NOT_SQL: Final = frozenset(
    {"alias", "col", "contains", "endswith", "fillna", "ilike", "isin", "like", "lit", "otherwise", "rlike"}
    | {"startswith", "when", "withColumn", "withColumnRenamed"}
)

DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
READABLE: Final = "a job is a Python file in UTF-8 that declares one table"
_CALL: Final = re.compile(r"\b([a-z_]+)\s*\(", re.IGNORECASE)
_CLOCK_WORDS: Final = re.compile(r"\b(current_timestamp|current_date|current_time|localtimestamp)\b", re.IGNORECASE)
_MODULES: Final = ({"jobs", "lake", "pyspark"} | sys.stdlib_module_names) - (
    {"random", "secrets", "time", "uuid"}
    | {"asyncio", "ftplib", "http", "imaplib", "poplib", "smtplib", "socket", "socketserver", "ssl", "urllib"}
    | {"dbm", "fileinput", "glob", "linecache", "mmap", "os", "pathlib", "shelve", "shutil", "sqlite3", "tempfile"}
    | {"bz2", "configparser", "gzip", "lzma", "tarfile", "xml", "zipfile"}
    | {"builtins", "codecs", "ctypes", "email", "getpass", "importlib", "locale", "logging", "mailbox"}
    | {"multiprocessing", "platform", "pwd", "resource", "runpy", "signal", "subprocess", "threading", "timeit"}
    | {"tokenize"}
)
_CLOCKS: Final = ("date.today", "datetime.now", "datetime.today", "datetime.utcnow")
_PROCESS_DEPENDENT: Final = frozenset({"__import__", "eval", "exec", "hash", "id", "input", "open"})
"""Functions of Python that may read other data than the inputs, or differ between processes."""
_ORDERED: Final = frozenset({"enumerate", "iter", "join", "list", "map", "next", "tuple", "zip"})
_UNORDERED: Final = frozenset({"all", "any", "frozenset", "len", "max", "min", "set", "sorted", "sum"})
IMPORTS: Final = (
    "a job may import pyspark, lake, jobs by their full names, and modules of the standard library that read "
    "nothing outside of it: no files, network, clock, randomness or other processes"
)


class _Call(NamedTuple):
    """Call in the code of a job or in its SQL; `inside` names the call whose argument it is, if any."""

    name: str
    line: int
    inside: str = ""
    has_arguments: bool = True


@dataclass(frozen=True)
class JobFile:
    """File below `jobs/`: a job, or another module whose functions jobs import."""

    path: Path
    text: str

    @classmethod
    def read(cls, path: Path) -> JobFile:
        where = _place(path)
        if not path.stem.isidentifier():
            fix = "rename it: letters, digits and _, like the function in it"
            raise DeclarationError(f"{path.stem!r} is not a valid table name", where=where, fix=fix)
        text = declared_text(path, "the job", where=where, fix=READABLE)
        try:
            compile(text, path, "exec", dont_inherit=True)
        except SyntaxError as error:
            where = f"{where}:{error.lineno}" if error.lineno else where
            raise DeclarationError(f"not valid Python: {error.msg}", where=where, fix="correct that line") from None
        except (ValueError, RecursionError, MemoryError) as error:
            what = f"not valid Python: {str(error) or 'nested too deeply'}"
            raise DeclarationError(what, where=where, fix=READABLE) from None
        return cls(path, text)

    @property
    def module(self) -> str:
        return _place(self.path.with_suffix("")).replace("/", ".").removesuffix(".__init__")

    @property
    def where(self) -> str:
        return _place(self.path)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return [*ast.walk(self.tree)]

    @cached_property
    def _normal_tree(self) -> str:
        return _normal_text(self.tree)

    @cached_property
    def imported(self) -> Mapping[str, set[str]]:
        """{dotted name in `jobs`: attributes of it that this file uses}.

        A call counts as the attribute `function`, the bare name (passed to another function, say) as `*`.
        """
        imported = defaultdict[str, set[str]](set)
        paths = {_dotted_name(node) for node in self._nodes if isinstance(node, ast.Attribute)}
        paths |= {f"{_dotted_name(node.func)}.function" for node in self._nodes if isinstance(node, ast.Call)}
        parts = {id(node.value) for node in self._nodes if isinstance(node, ast.Attribute)}
        paths |= {f"{node.id}.*" for node in self._nodes if isinstance(node, ast.Name) and id(node) not in parts}

        def add(name: str, variable: str) -> None:
            for path in paths:
                if path.startswith(f"{variable}."):
                    *before, last = path.removeprefix(f"{variable}.").split(".")
                    imported[".".join([name, *before])].add(last)

        for node in self._nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    imported[alias.name] |= set()
                    add(alias.name, alias.asname or alias.name)
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    imported[node.module].add(alias.name)
                    imported[f"{node.module}.{alias.name}"] |= set()
                    add(f"{node.module}.{alias.name}", alias.asname or alias.name)
        return {name: names for name, names in imported.items() if f"{name}.".startswith("jobs.")}

    def fingerprint(self, *more: str) -> str:
        """Return a hash of the syntax tree without docstrings and comments, and of `more`."""
        return hashlib.sha256("\n".join([self._normal_tree, *more]).encode()).hexdigest()[:16]

    def parts(self) -> dict[str, str]:
        """Return the parts of the fingerprint to show: kind, options and inputs as source, the rest as hashes.

        If no call that decorates the function names kind and inputs, the whole file is one part.
        """
        functions = [node for node in self.tree.body if _declares(node, self.path.stem)]
        calls = [(f, call.args) for f in functions for call in f.decorator_list if isinstance(call, ast.Call)]
        if not calls or not calls[0][1]:
            return {"rest of the file": _hash(self.tree.body)}
        function, (kind, *inputs) = calls[0]
        rest = [node for node in self.tree.body if node is not function]
        parts = {
            "inputs": ", ".join(map(ast.unparse, inputs)),
            "function": _hash(function.args, ast.Module(function.body, [])),
        }
        if isinstance(kind, ast.Call):
            parts["kind"] = ast.unparse(kind.func)
            options = {str(number): argument for number, argument in enumerate(kind.args, 1)}
            options |= {keyword.arg or "**": keyword.value for keyword in kind.keywords}
            parts |= {f"kind option {name}": text for item in options.items() for name, text in _option_texts(*item)}
        else:
            parts["kind"] = ast.unparse(kind)
        return parts | {"rest of the file": _hash(rest)}

    def faults(self) -> list[DeclarationError]:
        faults = [
            self._fault(line, f"imports {name}", IMPORTS) for name, line in _imports(self.tree) if not _may_import(name)
        ]
        for called, line, inside, has_arguments in self._calls():
            if is_nondeterministic(called, has_arguments=has_arguments):
                faults.append(self._fault(line, f"{called} is not deterministic", "derive it from the event"))
            elif called in ORDER_DEPENDENT and inside not in SORTERS:
                fix = "use min_by or max_by over a total order, or sort_array(collect_list(…))"
                faults.append(self._fault(line, f"{called} depends on the order of rows", fix))
            elif SKETCHES.match(called):
                faults.append(self._fault(line, f"{called} depends on the order of rows", "use an exact measure"))
            elif called == "_ingested_at":
                what = "_ingested_at is for people only: it differs between runs"
                faults.append(self._fault(line, what, "use the event time, _time"))
        faults += [self._fault(line, what, fix) for line, what, fix in self._process_dependent()]
        return faults

    def _process_dependent(self) -> Iterator[tuple[int, str, str]]:
        """Yield (line, fault, fix) of Python with another result in another process."""
        functions = [node for node in self._nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for line in sorted({line for f in functions for name, line in _imports(f) if f"{name}.".startswith("jobs.")}):
            what = "imports a module of jobs/ in a function, where workers may have an older one"
            yield line, what, "import it at the top of the file"
        imports = (node for node in self._nodes if isinstance(node, ast.ImportFrom))
        own = {f.name for f in functions} | {alias.asname or alias.name for node in imports for alias in node.names}
        for node in self._nodes:
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in _PROCESS_DEPENDENT - own:
                    fix = "use hashlib" if name == "hash" else "use only the rows of the inputs"
                    yield node.lineno, f"{name} has another result in another process", fix
                case (
                    ast.Attribute(ast.Attribute(attr="sparkSession"), "read" | "readStream" | "table" as name)
                    | ast.Call(func=ast.Attribute(attr="open" as name))
                ):
                    yield node.lineno, f"{name} may read what is in no input", "use only the rows of the inputs"
                case ast.Attribute(attr="__doc__"):
                    yield node.lineno, "__doc__: docstrings may change without a deploy", "use a text that has a name"
                case ast.Global():
                    yield node.lineno, "global: another event's call may have set it", "use only the arguments"
        for value in self._ordered_sets():
            yield value.lineno, "the order of a set is another in another process", "sort it: sorted(…)"

    def _ordered_sets(self) -> Iterator[ast.expr]:
        """Yield the sets that become sequences, unless the order makes no difference there."""
        calls = (node for node in self._nodes if isinstance(node, ast.Call) and _called(node) in _UNORDERED)
        unordered, sets = {id(argument) for call in calls for argument in call.args}, self._sets()
        sequenced = (value for node in self._nodes if id(node) not in unordered for value in _ordered_values(node))
        return (value for value in sequenced if _is_set(value, sets))

    def _sets(self) -> set[str]:
        """Return the names that are never assigned anything but sets."""
        names, of_sets = Counter[str](), Counter[str]()
        for node in self._nodes:
            match node:
                case ast.Name(name, ast.Store()) | ast.arg(name):
                    names[name] += 1
                case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), value=value) if _is_set(value):
                    of_sets[name] += 1
        return {name for name, count in of_sets.items() if count == names[name]}

    @property
    def texts(self) -> set[str]:
        written = {text for text, _, _ in self._texts()}
        return written | {text for sql in written for text in texts_of(sql)}

    def _texts(self) -> Iterator[tuple[str, int, ast.AST]]:
        """Yield (text, line, parent) of all texts but docstrings. A sum of texts and an f-string are one text."""
        documented = {id(text) for text in _docstrings(self.tree)}
        for parent in self._nodes:
            for node in ast.iter_child_nodes(parent):
                if isinstance(node, ast.expr) and id(node) not in documented and not _joins_texts(parent):
                    text = _static_text(node)
                    if text:
                        yield text, node.lineno, parent

    def _calls(self) -> Iterator[_Call]:
        for parent in self._nodes:
            for node in ast.iter_child_nodes(parent):
                if isinstance(node, ast.Call):
                    yield _Call(_name(node.func), node.lineno, _called(parent), bool(node.args or node.keywords))
                elif isinstance(node, ast.Attribute) and node.attr == "_ingested_at":
                    yield _Call("_ingested_at", node.lineno)
                elif isinstance(node, ast.Attribute) and _dotted_name(node).endswith(_CLOCKS) and not _called(parent):
                    yield _Call(node.attr, node.lineno)
        for text, line, parent in self._texts():
            if "_ingested_at" in text:
                yield _Call("_ingested_at", line)
            if isinstance(parent, ast.Call) and _called(parent) == "call_function":
                yield _Call(text.lower(), line, has_arguments=len(parent.args) > 1)
            elif not isinstance(parent, ast.Compare) and _called(parent) not in NOT_SQL:
                yield from _sql_calls(text, line)

    def _fault(self, line: int, what: str, fix: str) -> DeclarationError:
        return DeclarationError(f"{self.path.stem}: {what}", where=f"{self.where}:{line}", fix=fix)


def _place(path: Path) -> str:
    """Return the path from the folder `jobs` on."""
    start = max((i for i, name in enumerate(path.parts[:-1]) if name == "jobs"), default=len(path.parts) - 3)
    return "/".join(["jobs", *path.parts[start + 1 :]])


def _dotted_name(node: ast.expr) -> str:
    """Return `a.b.c` as text; "" for an attribute of another expression."""
    if isinstance(node, ast.Attribute):
        before = _dotted_name(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def _imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), node.lineno


def _joins_texts(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add))


def _static_text(node: ast.AST) -> str:
    """Return a text with a space for each computed part; "" for other nodes."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_static_text(part) or " " for part in parts)
        case ast.BinOp(left, ast.Add(), right):
            return (_static_text(left) or " ") + (_static_text(right) or " ")
    return ""


def _sql_calls(text: str, line: int) -> Iterator[_Call]:
    sql, before = code_of(text), ""
    yield from (_Call(match[1].lower(), line) for match in _CLOCK_WORDS.finditer(sql))
    for match in _CALL.finditer(sql):
        directly = before and sql[: match.start()].rstrip().endswith("(")
        has_arguments = not sql[match.end() :].lstrip().startswith(")")
        yield _Call(match[1].lower(), line, before if directly else "", has_arguments)
        before = match[1].lower()


def _may_import(name: str) -> bool:
    return name == "urllib.parse" or name.partition(".")[0] in _MODULES


def _ordered_values(node: ast.AST) -> Sequence[ast.expr]:
    """Return the values whose order matters to `node`. With a key, `sorted` keeps the order of equal keys."""
    match node:
        case ast.Call():
            has_key = any(keyword.arg == "key" for keyword in node.keywords)
            return node.args if has_key or _called(node) in _ORDERED else _unpacked(node.args)
        case ast.ListComp() | ast.GeneratorExp() | ast.DictComp():
            return [generator.iter for generator in node.generators]
        case ast.For():
            return [node.iter]
        case ast.List() | ast.Tuple():
            return _unpacked(node.elts)
    return ()


def _unpacked(values: Sequence[ast.expr]) -> list[ast.expr]:
    return [value.value for value in values if isinstance(value, ast.Starred)]


def _is_set(node: ast.AST | None, names: Collection[str] = ()) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name("set" | "frozenset")):
            return True
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr() | ast.BitXor() | ast.Sub(), right):
            return _is_set(left, names) or _is_set(right, names)
        case ast.Name(name):
            return name in names
    return False


def _called(node: ast.AST) -> str:
    return _name(node.func) if isinstance(node, ast.Call) else ""


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _declares(node: ast.stmt, table: str) -> TypeGuard[ast.FunctionDef]:
    return isinstance(node, ast.FunctionDef) and node.name == table and bool(node.decorator_list)


def _option_texts(name: str, option: ast.expr) -> Iterator[tuple[str, str]]:
    if not isinstance(option, ast.Dict):
        yield name, ast.unparse(option)
        return
    for key, value in zip(option.keys, option.values, strict=True):
        yield f"{name}[{ast.unparse(key) if key else '**'}]", ast.unparse(value)


def _hash(*nodes: object) -> str:
    return hashlib.sha256("\n".join(map(_normal_text, nodes)).encode()).hexdigest()[:8]


def _docstrings(tree: ast.AST) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


def _normal_text(node: Any) -> str:
    """Return text that, unlike that of `ast.dump`, is the same for every Python version that can parse the code."""
    if isinstance(node, list):
        return "[" + ",".join(map(_normal_text, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    skip = {id(text) for text in _docstrings(node)} if isinstance(node, DOCUMENTED) else set()
    fields = []
    for name, value in ast.iter_fields(node):
        if name in ("ctx", "kind", "type_comment", "type_ignores", "type_params") or value in (None, []):
            continue
        if name == "body" and isinstance(value, list):
            code = [line for line in value if not (isinstance(line, ast.Expr) and id(line.value) in skip)]
            fields.append(f"{name}={_normal_text(code)}")
        else:
            fields.append(f"{name}={_normal_text(value)}")
    return f"{type(node).__name__}({','.join(fields)})"
