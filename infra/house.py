"""Figures of how the code in `lake/` is built: sizes, imports, long functions, docstrings, and what a small run does.

    python infra/house.py [--trace] [--json] [--show FIGURE] [ROOT]

`--trace` adds the figures of `lake run` of one late event into one table. `--show` prints the places that a figure
counts. ROOT is the repository to measure (default: this one); `--trace` measures the `lake` that Python imports.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import os
import re
import sys
import threading
import tokenize
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]
CONNECTORS: Final = ("connect/", "serve/", "privacy/")
LONG_MODULE, SHORT_MODULE, LONG_FUNCTION = 400, 60, 40
OWNED: Final[Mapping[str, tuple[str, str]]] = {
    "url_of": (r"\burl_of\(", "config.py"),
    "is_remote, is_durable": (r"\.is_(?:remote|durable)\b", "store/"),
    "by_spark": (r"\.by_spark\b", "store/warehouse.py"),
    "isinstance(…, pa.Table)": (r"isinstance\(.*?\bpa\.Table\b", "store/rows.py"),
}
"""Expressions, and the module or folder that alone should contain them."""
RELATIVE: Final = re.compile(r"(What|Who|Whose|Whether|Of|That|How often)\b")
LAYOUT: Final = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
CONTRACT: Final = """{"type": "record", "name": "orders", "doc": "One order.",
 "lake": {"key": ["customer"], "id": ["number"], "time": "at", "buckets": 2},
 "fields": [{"name": "customer", "type": "string"}, {"name": "number", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}]}
"""
JOB: Final = '''from lake import *

@table(Latest("customer"), log("orders"))
def latest_order(rows):
    """The newest order of each customer."""
    return rows
'''
Figures = dict[str, int | list[str] | None]


@dataclass(frozen=True)
class Module:
    """A file of `lake/`; `path` is relative to that folder."""

    path: str
    text: str

    @property
    def name(self) -> str:
        return ".".join(["lake", *Path(self.path).with_suffix("").parts]).removesuffix(".__init__")

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(ast.parse(self.text)))

    def docstrings(self) -> Iterator[ast.Constant]:
        """Yield every string that is a statement: docstrings, and the notes below constants and fields."""
        for node in self.nodes:
            match node:
                case ast.Expr(value=ast.Constant(value=str()) as text):
                    yield text

    def code_lines(self) -> int:
        """Count the lines that are neither blank nor only comment or docstring."""
        code = set[int]()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in LAYOUT and token.string:
                code.update(range(token.start[0], token.end[0] + 1))
        return len(code.difference(*(range(doc.lineno, (doc.end_lineno or 0) + 1) for doc in self.docstrings())))

    def imports(self, modules: frozenset[str]) -> set[str]:
        """Return the names of those `modules` that this one imports, in functions too."""
        found = set[str]()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found.update(name if name in modules else node.module for name in names)
        return found & modules - {self.name}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the parameters without `self` and `cls`; a command of click has none."""
    if any(re.match(r"(\w+\.)?(command|group)\b", ast.unparse(each)) for each in function.decorator_list):
        return 0
    every = function.args
    named = (*every.posonlyargs, *every.args, *every.kwonlyargs, *filter(None, (every.vararg, every.kwarg)))
    return sum(each.arg not in {"self", "cls"} for each in named)


def of_functions(modules: Sequence[Module]) -> Figures:
    """Return the figures of functions and classes."""
    nodes = [(module.path, node) for module in modules for node in module.nodes]
    functions = [
        (f"{path}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1, parameters(node))
        for path, node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    classes = Counter(node.name for _, node in nodes if isinstance(node, ast.ClassDef))
    return {
        f"functions over {LONG_FUNCTION} lines": [place for place, lines, _ in functions if lines > LONG_FUNCTION],
        "functions of more than 6 parameters": [place for place, _, count in functions if count > 6],
        "functions of more than 5 parameters": [place for place, _, count in functions if count > 5],
        "classes": classes.total(),
        "class names of two or more classes": [name for name, times in classes.items() if times > 1],
    }


def of_docstrings(modules: Sequence[Module]) -> Figures:
    """Return the figures of docstrings."""
    docs = [(f"{module.path}:{doc.lineno}", str(doc.value)) for module in modules for doc in module.docstrings()]
    sentences = [(at, one) for at, text in docs for one in re.split(r"(?<=[.!?])\s+|\n\s*\n\s*", text)]
    return {
        "docstrings": len(docs),
        "words of docstrings": sum(len(text.split()) for _, text in docs),
        "sentences of docstrings": len(sentences),
        "sentences that begin with What, Who …": [f"{at} {one}" for at, one in sentences if RELATIVE.match(one)],
    }


def uses(modules: Sequence[Module], expression: str) -> list[str]:
    """Return where an expression of `OWNED` is used outside its module."""
    pattern, owner = OWNED[expression]
    lines = [(f"{m.path}:{n}", line) for m in modules for n, line in enumerate(m.text.splitlines(), 1)]
    return [at for at, line in lines if not at.startswith(owner) for _ in re.findall(pattern, line)]


def house(root: Path) -> Figures:
    """Return the figures of `root`/lake; a list has the places that are counted. Templates count only as lines."""
    texts = {path.relative_to(root / "lake").as_posix(): path.read_text("utf-8") for path in root.glob("lake/**/*.py")}
    every = [Module(path, text) for path, text in sorted(texts.items())]
    modules = [module for module in every if not module.path.startswith("templates/")]
    kernel = [module for module in every if not module.path.startswith(CONNECTORS)]
    leaves = [module for module in modules if not module.path.endswith("__init__.py")]
    names = frozenset(module.name for module in modules)
    importers = Counter(name for module in modules for name in module.imports(names))
    contracts = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    return {
        "lines": sum(module.lines for module in every),
        "lines of code": sum(module.code_lines() for module in every),
        "lines of the kernel": sum(module.lines for module in kernel) if len(kernel) < len(every) else None,
        "packages on the main floor": sorted({module.path.split("/")[0] for module in modules if "/" in module.path}),
        "files on the main floor": [module.path for module in modules if "/" not in module.path],
        "import layers": max(len(contract.get("layers", ())) for contract in contracts),
        "modules": len(modules),
        "modules with one importer": [module.path for module in leaves if importers[module.name] == 1],
        f"modules under {SHORT_MODULE} lines": [module.path for module in leaves if module.lines < SHORT_MODULE],
        f"modules over {LONG_MODULE} lines": [module.path for module in modules if module.lines > LONG_MODULE],
        **of_functions(modules),
        **{f"{expression} elsewhere": uses(modules, expression) for expression in OWNED},
        **of_docstrings(modules),
    }


@contextmanager
def counted_lookups() -> Iterator[list[str]]:
    """Collect the table of each look-up of a newest version."""
    from lake.store.table_logs import FolderLog

    look_up, tables = FolderLog._look_up, list[str]()

    def counted(self: FolderLog) -> int | None:
        tables.append(self.path.url)
        return look_up(self)

    FolderLog._look_up = counted  # type: ignore[method-assign]
    try:
        yield tables
    finally:
        FolderLog._look_up = look_up  # type: ignore[method-assign]


def traced(call: Callable[[], object]) -> dict[str, list[str]]:
    """Return what `call` does in `lake`: modules of which a function runs, calls between modules, look-ups of tables.

    A call belongs to the nearest caller in `lake`. Threads count if they begin during the call.
    """
    import lake

    folder, ran, calls = Path(lake.__file__).parent, set[str](), list[str]()

    @cache
    def module(file: str) -> str | None:
        return Path(file).relative_to(folder).as_posix() if file.startswith(f"{folder}/") else None

    def count(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        callee = module(code.co_filename) if event == "call" and code.co_flags & inspect.CO_OPTIMIZED else None
        if callee is None or (code.co_flags & inspect.CO_GENERATOR and code.co_code[frame.f_lasti + 1] & 3):
            return  # a generator goes on: the argument of its RESUME is not 0
        ran.add(callee)
        caller = frame.f_back
        while caller and module(caller.f_code.co_filename) is None:
            caller = caller.f_back
        if caller and caller.f_code.co_filename != code.co_filename:
            calls.append(f"{module(caller.f_code.co_filename)} -> {callee}")

    with counted_lookups() as lookups:
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            call()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return {"modules at work": sorted(ran), "calls between modules": calls, "look-ups of a table": lookups}


def late_event(project: Path, run: Callable[[], object]) -> dict[str, list[str]]:
    """Trace `run` of one late event into one table, in a new `project` after two runs of an event each."""
    for folder in ("schemas", "jobs/silver", "quality", "landing/orders"):
        (project / folder).mkdir(parents=True)
    (project / "pyproject.toml").write_text("[tool.lake]\n")
    (project / "schemas/orders.avsc").write_text(CONTRACT)
    (project / "jobs/silver/latest_order.py").write_text(JOB)

    def land(day: int) -> None:
        event = {"customer": "joan", "number": day, "at": f"2026-01-0{day}T00:00:00Z"}
        (project / f"landing/orders/{day}.jsonl").write_text(json.dumps(event) + "\n")

    for day in (5, 7):
        land(day)
        run()
    land(6)
    return traced(run)


def of_a_run() -> Figures:
    """Return the figures of `lake run` of one late event in this process, in which Spark runs already."""
    from lake.cli import Shell, lake

    with TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        command = ["run", "--project", folder]
        done = late_event(Path(folder), lambda: lake.main([*command], standalone_mode=False, obj=Shell()))
    imported = sorted(name for name in sys.modules if name.split(".")[0] == "lake")
    return {f"lake run: {name}": places for name, places in ({"modules imported": imported} | done).items()}


def main() -> None:
    """Print the figures, or the places that one of them counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", nargs="?", type=Path, default=ROOT, metavar="ROOT")
    parser.add_argument("--trace", action="store_true", help="the figures of a run, too")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--show", metavar="FIGURE", help="print the places that this figure counts")
    options = parser.parse_args()
    figures = house(options.root) | (of_a_run() if options.trace else {})
    numbers = {name: len(value) if isinstance(value, list) else value for name, value in figures.items()}
    if options.show:
        places = figures.get(options.show)
        if not isinstance(places, list):
            parser.error(f"--show {options.show!r} is no figure that counts places; take a name from the table")
        print(*(f"{times:6} {place}" for place, times in Counter(places).most_common()), sep="\n")
    elif options.json:
        print(json.dumps(numbers, indent=2, ensure_ascii=False))
    else:
        print(*(f"{'-' if number is None else number:>7} {name}" for name, number in numbers.items()), sep="\n")
    sys.stdout.flush()
    if options.trace:
        os._exit(0)  # pyarrow and deltalake in one process sometimes abort in their destructors


if __name__ == "__main__":
    main()
