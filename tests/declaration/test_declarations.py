"""Faults found when a project is loaded, before any data is read: each with file, line and fix."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import lake
from lake.config import Settings, load_settings
from lake.contracts.determinism import NONDETERMINISTIC
from lake.errors import DeclarationError
from lake.project.jobfile import JobFile
from lake.project.project import load, sound_project
from tests.shop import contract, declare

REPOSITORY = Path(__file__).parents[2]
HEAD = "from datetime import timedelta\nfrom lake import *\n"
GOOD = '''
@table(Latest("id"), log("things"))
def newest(things):
    """One thing, as last seen."""
    return things.select("id", "size")
'''


@pytest.fixture
def things(project: Settings) -> Settings:
    """Return a project with one stream, `things`."""
    declare(project, contract("things", {"id": "long", "size": "double"}))
    return project


def write(settings: Settings, name: str, text: str, layer: str = "silver") -> None:
    settings.path(f"jobs/{layer}/{name}.py").write_text(HEAD + textwrap.dedent(text))


def refusal(settings: Settings) -> str:
    with pytest.raises(DeclarationError) as error:
        load(settings)
    assert error.value.exit_code == 2
    return str(error.value)


def test_project_loads_in_dependency_order(things: Settings) -> None:
    write(things, "newest", GOOD)
    write(
        things,
        "answer",
        '''
        from jobs.silver.newest import newest
        @table(View("id"), newest)
        def answer(newest):
            """One thing's answer."""
            return newest
        ''',
        layer="gold",
    )
    project = load(things)
    assert list(project.tables) == ["newest", "answer"]
    answer = project.tables["answer"]
    assert (answer.layer, answer.doc, answer.where) == ("gold", "One thing's answer.", "jobs/gold/answer.py:5")
    assert project.logs(answer) == {"things"}


def test_function_of_a_job_may_be_wrapped_by_another_module(things: Settings) -> None:
    wrapping = """
        from functools import wraps

        def checked(function):
            @wraps(function)
            def wrapper(*frames):
                return function(*frames)
            return wrapper
    """
    things.path("jobs/checks.py").write_text(textwrap.dedent(wrapping))
    write(things, "newest", "from jobs.checks import checked\n" + GOOD.replace("def newest", "@checked\ndef newest"))
    newest = load(things).tables["newest"]
    assert (newest.layer, newest.where.partition(":")[0]) == ("silver", "jobs/silver/newest.py")


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (
            "@table(Latest('id'), log('thing'))\ndef newest(t):\n    '''A thing.'''\n    return t",
            "did you mean 'things'",
        ),
        ("@table(Latest('id'), log('things'))\ndef newest(t):\n    return t", "has no docstring"),
        ("@table(Latest('id'))\ndef newest():\n    '''A thing.'''\n", "has no input"),
        ("@table(Latest('id'), log('things'))\ndef other(t):\n    '''A thing.'''\n    return t", "declares other"),
        ("x = 1", "declares no table"),
        ("raise ValueError('no')", "ValueError: no"),
        ("@table(Latest('id'), log('things'), log('things'))\ndef newest(t, u):\n    '''A.'''\n", "takes one input"),
        (
            "@table(Enrich('id', AsOf('id'), AsOf('size'), time='at'), log('things'))\ndef newest(t):\n    '''A.'''\n",
            "takes 3 inputs, found 1",
        ),
        (
            "@table(View(()), log('things'))\ndef newest(t):\n    '''A thing.'''\n    return t",
            "its rows have no identity",
        ),
        ("import requests", "imports requests"),
        ("import random", "imports random"),
        ("from pyspark.sql import functions as F\nx = F.rand()", "rand is not deterministic"),
        ("x = 'select now() as t'", "now is not deterministic"),
        ("x = 'select CURRENT_TIMESTAMP as t'", "current_timestamp is not deterministic"),
        ("from pyspark.sql import functions as F\nx = F.first('a')", "first depends on the order"),
        ("x = 'select collect_list(a) from t'", "collect_list depends on the order"),
        ("x = '_ingested_at'", "_ingested_at is for people only: it differs between runs"),
        ("def newest(:", "not valid Python"),
    ],
)
def test_faulty_job_is_rejected_with_its_file(things: Settings, function: str, told: str) -> None:
    write(things, "newest", function)
    message = refusal(things)
    assert told in message
    assert "newest.py" in message


LOOKS_LIKE_A_CALL = (
    """t.where("name = 'see {function}()'")""",
    """t.where('name = "see {function}()"')""",
    """t.where(f"name = 'see {function}()' and id > {{least}}")""",
    """t.where("name = '" + name + " {function}()'")""",
    """t.where(r"name = r'\\' or name = 'see {function}()'")""",
    """t.where("id > 1 -- not {function}()")""",
    """t.where("id > 1 /* not {function}() */")""",
    """t.where("`{function}()` > 1")""",
    """t.selectExpr("id as `{function}()`", "id AS {function}")""",
    """t.where(F.col("{function}()") == "{function}()")""",
    """t.withColumn("{function}()", F.lit("{function}()").alias("{function}()"))""",
)
CALLS = (
    """F.{function}()""",
    """F.call_function("{function}")""",
    """t.where("id > {function}()")""",
    """t.where("name = 'it''s' and id > {function} ( )")""",
    """t.where(f"name = '{{name}}' and id > {function}() and name <> '{{other}}'")""",
    """t.where("name = '" + name + "' and id > {function}() and name <> '" + other + "'")""",
    """t.where("id > {function}/* today */()")""",
    """t.where("id > `{function}`()")""",
    """t.where("id > 1 -- more\\nand id > {function}()")""",
    """F.when(F.expr("id > {function}()"), "yes")""",
)


@pytest.mark.parametrize("code", LOOKS_LIKE_A_CALL)
def test_text_name_and_comment_that_look_like_a_call_are_accepted(tmp_path: Path, code: str) -> None:
    assert not called(tmp_path, code)


@pytest.mark.parametrize("code", CALLS)
def test_call_of_each_nondeterministic_function_is_rejected(tmp_path: Path, code: str) -> None:
    assert called(tmp_path, code) == {f"{function} is not deterministic" for function in FUNCTIONS}


@pytest.mark.parametrize(
    "code",
    [
        "F.{function}({arguments})",
        "F.call_function('{function}'{comma}{arguments})",
        "t.where('id > {function}( {arguments} )')",
        "F.expr('id > `{function}`({arguments})')",
    ],
)
@pytest.mark.parametrize("arguments", ["", "at"])
def test_unix_timestamp_is_rejected_without_an_argument(tmp_path: Path, code: str, arguments: str) -> None:
    call = code.replace("{arguments}", arguments).replace("{comma}", ", " if arguments else "")
    (tmp_path / "t.py").write_text(call.format(function="unix_timestamp"))
    faults = [fault.what for fault in JobFile.read(tmp_path / "t.py").faults()]
    assert faults == ([] if arguments else ["t: unix_timestamp is not deterministic"])


@pytest.mark.parametrize("code", ["date.today()", "datetime.utcnow()", "datetime.datetime.now()", "datetime.today()"])
def test_clock_of_python_is_rejected(tmp_path: Path, code: str) -> None:
    (tmp_path / "t.py").write_text(f"x = F.lit({code})")
    [fault] = JobFile.read(tmp_path / "t.py").faults()
    assert "is not deterministic" in str(fault)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("x = hash('a')", "hash"),
        ("x = open('a')", "open"),
        ("def f(s):\n    return ','.join({w for w in s})", "order of a set"),
        ("def f(s):\n    return next(iter(set(s)))", "order of a set"),
        ("def f(s):\n    return list(set(s))[0]", "order of a set"),
        ("def f(s):\n    return [*{*s}]", "order of a set"),
        ("def f(t):\n    return t.select(*{'a', 'b'})", "order of a set"),
        ("def f(s):\n    return max(set(s), key=len)", "order of a set"),
        ("def f(s):\n    words = set(s)\n    return tuple(words - {'a'})", "order of a set"),
        ("def f(s):\n    return ','.join(w.upper() for w in frozenset(s))", "order of a set"),
        ("def f(t):\n    for c in {'a', 'b'}:\n        t = t.withColumn(c, t[c])\n    return t", "order of a set"),
        ("def f(t):\n    return t.withColumns({c: t.x for c in {'a', 'b'}})", "order of a set"),
        ("def f(t):\n    for c in sorted({'a', 'b'}):\n        t = t.withColumn(c, t[c])\n    return t", ""),
        ("def f(s):\n    words = set(s)\n    words = sorted(words)\n    return list(words)", ""),
        ("def f(s):\n    words = set(s)\n    return sum(len(w) for w in words), 'a' in words", ""),
        ("import logging, email", "imports "),
        ("def f(s):\n    'a'\n    return f.__doc__", "__doc__"),
        ("n = 0\ndef f(s):\n    global n\n    n += 1\n    return n", "global"),
        ("now = datetime.datetime.now", "now is not deterministic"),
        ("x = F.expr(\"at > timestamp 'now'\")", "now is not deterministic"),
        ("x = F.lit('now')", ""),
        ("import pathlib", "imports pathlib"),
        ("import zipfile, csv", "imports zipfile"),
        ("import io\nx = io.open('a')", "open"),
        ("def f(t):\n    return t.sparkSession.read.json('a')", "read"),
        ("def f(t):\n    return t.sparkSession.sql('select 1 from {t}', t=t)", ""),
        ("def f(n):\n    from jobs.h import RATE\n    return n * RATE", "in a function"),
        ("def f(n):\n    def g():\n        import jobs.h as h\n    return g", "in a function"),
        ("f = lambda n: n\ndef g(n):\n    import json\n    return json.dumps(n)", ""),
        ("from urllib.request import urlopen", "imports urllib.request"),
        ("from urllib.parse import quote", ""),
        ("import io, csv, json, hashlib, unicodedata, zoneinfo", ""),
        ("from pyspark.sql.functions import hash\nx = hash('a')", ""),
        ("x = F.hash('a')", ""),
        ("def open(s):\n    return s\nx = open('a')", ""),
        ("def f(s):\n    return sorted(list(set(s))), ','.join(sorted(set(s))), len({*s})", ""),
    ],
)
def test_python_with_another_result_in_another_process_is_rejected(tmp_path: Path, code: str, fault: str) -> None:
    (tmp_path / "t.py").write_text(code)
    faults = [found.what for found in JobFile.read(tmp_path / "t.py").faults()]
    assert {fault in found for found in faults} == ({True} if fault else set()), faults


FUNCTIONS = sorted(name for name in NONDETERMINISTIC if name.islower())


def called(folder: Path, code: str) -> set[str]:
    file = folder / "t.py"
    file.write_text("\n".join(code.format(function=function) for function in FUNCTIONS))
    return {fault.what.removeprefix("t: ") for fault in JobFile.read(file).faults()}


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("Latest('id', partial='size', groups={'g': 'size'})", "column 'size' is in group 'g' and in partial"),
        ("History('id', sequence=())", "History needs a sequence"),
        ("History('id', sequence='at', marker='ended')", "marker needs snapshots=True"),
        ("Latest('id', sequence='at', marker='ended')", "marker needs snapshots=True"),
        ("Latest('id', sequence='at', partition='region')", "partition needs snapshots=True"),
        ("Latest('id', snapshots=True)", "snapshots need a sequence"),
        ("Latest('id', sequence='at', snapshots=True, deletes='gone')", "snapshots cannot have deletes"),
        ("Latest('id', sequence='at', snapshots=True, partial=True)", "snapshots cannot have partial columns"),
        ("Latest('id', sequence='at', snapshots=True, partition='at')", "partition names 'at'"),
        ("Aggregate('id', {'n': Count()}, is_final=True)", "is_final needs a window"),
        ("Aggregate('id', {'q': Quantile('size', 2)})", "invalid quantile"),
        ("Fold('id', state='n int', step={'m': '1'})", "'m'"),
        ("Pattern('id', sequence='at', steps=[], measures={})", "match no rows"),
        ("Pattern('id', sequence='at', steps=[Step('a', 'size > 1', times=(3, 2))], measures={})", "from 3 to 2 rows"),
        ("Enrich('id', time='at')", "Enrich needs a dimension"),
        ("Join('id', how='outer')", "how='outer'"),
        ("View('id', recursive=True)", "a recursive query has no key"),
    ],
)
def test_invalid_kind_is_rejected_with_its_line(things: Settings, kind: str, told: str) -> None:
    lines = [
        "@table(",
        f"    {kind},",
        "    log('things'),",
        ")",
        "def newest(t):",
        "    '''A thing.'''",
        "    return t",
    ]
    write(things, "newest", "\n".join(lines))
    message = refusal(things)
    assert told in message
    assert "jobs/silver/newest.py:4" in message
    assert "fix: " in message


def test_lateness_without_event_time_is_rejected(things: Settings) -> None:
    kind = "Aggregate('id', {'n': Count()}, window=Tumbling(length=timedelta(hours=1), on='at'), late='drop')"
    write(things, "newest", f"@table({kind}, log('things'))\ndef newest(t):\n    '''A thing.'''\n    return t\n")
    assert "which an input lacks" in refusal(things)


def test_sorted_lists_are_accepted_as_deterministic(things: Settings) -> None:
    write(things, "newest", "x = 'select sort_array(collect_list(a)) from t'\n" + GOOD)
    assert list(load(things).tables) == ["newest"]


def test_cycle_of_tables_is_reported(things: Settings) -> None:
    for name, other in [("one", "two"), ("two", "one")]:
        write(things, name, f"from jobs.silver.{other} import {other}")
    assert "inputs form a cycle: one → two → one" in refusal(things) or "two → one → two" in refusal(things)


def test_table_declared_in_both_layers_is_rejected(things: Settings) -> None:
    write(things, "newest", GOOD)
    write(things, "newest", GOOD, layer="gold")
    assert "declared twice, first in jobs/silver/newest.py" in refusal(things)


def test_project_reports_all_faults_at_once(things: Settings) -> None:
    write(things, "one", "x = 'uuid()'")
    write(things, "two", "import numpy")
    message = refusal(things)
    assert "uuid" in message
    assert "numpy" in message


def test_fingerprint_changes_with_code_that_affects_rows_only(tmp_path: Path) -> None:
    def fingerprint(text: str) -> str:
        file = tmp_path / "t.py"
        file.write_text(text)
        return JobFile.read(file).fingerprint()

    base = fingerprint('def f(t):\n    """One."""\n    return t.select("a")\n')
    assert base == fingerprint('def f(t):\n    """Two."""\n    # why\n    return t.select(\n        "a"\n    )\n')
    assert base != fingerprint('def f(t):\n    """One."""\n    return t.select("b")\n')


@pytest.mark.parametrize(
    "head", ["def f(t):", "async def f(t):", "class C:", "class C:\n  class D:", "class C:\n  def f(t):"]
)
def test_fingerprint_is_that_of_the_code_without_docstrings(tmp_path: Path, head: str) -> None:
    def fingerprints(body: str) -> tuple[str, dict[str, str]]:
        file = tmp_path / "t.py"
        file.write_text(f"{head}\n{body}")
        return JobFile.read(file).fingerprint(), JobFile.read(file).parts()

    assert fingerprints('    """One."""\n    x = 1\n') == fingerprints("    x = 1\n")
    assert fingerprints("    x = 1\n    'text'\n") != fingerprints("    x = 1\n")


def test_fingerprint_includes_the_contract_fields_in_use(things: Settings) -> None:
    write(things, "newest", GOOD)
    before = load(things)
    declare(things, contract("things", {"id": "long", "size": "double", "colour": "string?"}))
    unused = load(things)
    declare(things, contract("things", {"id": "long", "size": "decimal(9, 2)", "colour": "string?"}))
    used = load(things)
    read = {"things": {"read": {"id": "bigint", "size": "double"}}}
    prints = [each.fingerprint(each.tables["newest"], read) for each in (before, unused, used)]
    assert prints[0] == prints[1] != prints[2]


def test_exported_names_exist() -> None:
    for name in lake.__all__:
        assert getattr(lake, name) is not None
    assert not hasattr(lake, "nothing")


def test_type_checkers_see_the_exported_names() -> None:
    [typed] = [node for node in ast.parse(inspect.getsource(lake)).body if ast.unparse(node).startswith("if TYPE_")]
    imports = [node for node in ast.walk(typed) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    assert seen == {name: f"{home}.{name}" for name, home in lake._HOME.items()}


def test_exported_names_import_no_spark_library_and_start_no_jvm() -> None:
    asked = "import sys, lake; [getattr(lake, name) for name in lake.__all__]; print([*sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert "'lake.kinds.latest'" in loaded
    assert not re.findall(r"'(?:pyspark|py4j|delta|great_expectations)[.']", loaded)


def test_kinds_of_sources_import_no_spark_library() -> None:
    asked = "import sys; from lake.connectors import *; "
    asked += "[connector('lake.sources', kind, '') for kind in connectors('lake.sources')]; print([*sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert "'lake.connect.singer.tap'" in loaded
    assert not re.findall(r"'(?:pyspark|pyarrow|deltalake|confluent_kafka|psycopg|starlette)[.']", loaded)


def test_posted_events_are_listed_without_arrow() -> None:
    asked = "import sys, lake.serve.source; print([*sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert not re.findall(r"'(?:pyspark|pyarrow|starlette)[.']", loaded)


def test_project_of_this_repository_loads() -> None:
    project = load(load_settings(REPOSITORY))
    assert list(project.tables).index("carrier_daily") < list(project.tables).index("carrier_league")
    assert all(declaration.doc and declaration.comments for declaration in project.tables.values())


def test_definition_includes_code_borrowed_from_another_job(things: Settings) -> None:
    write(things, "newest", GOOD)
    lines = ["from jobs.silver.newest import newest", "@table(newest.kind, log('things'))", "def same(t):", "    'A.'"]
    write(things, "same", "\n".join([*lines, "    return t"]))
    before = load(things)
    write(things, "newest", GOOD.replace('Latest("id")', 'Latest("id", sequence="size")'))
    after = load(things)
    assert before.fingerprint(before.tables["same"], {}) != after.fingerprint(after.tables["same"], {})


SCALED = "def scaled(size):\n    return size * 1\n"
OF_SIZES = ("sizes", "units", "lib")
OF_NEWEST = ("newest", *OF_SIZES)
USES = {
    "the table as input": ("from jobs.silver.newest import newest", "newest", "rows.select('id')", ()),
    "the table by its module": ("from jobs.silver import newest as n", "n.newest", "rows.select('id')", ()),
    "the table by a path": ("import jobs.silver.newest", "jobs.silver.newest.newest", "rows.select('id')", ()),
    "a frame of its name": ("from jobs.silver.newest import newest", "newest", "newest.where('id > 0')", ()),
    "its helper": ("from jobs.silver.newest import newest, scaled", "newest", "rows.select(scaled('id'))", OF_NEWEST),
    "its helper by a path": (
        "import jobs.silver.newest as n", "n.newest", "rows.select(n.scaled('id'))", OF_NEWEST,
    ),
    "its kind": ("from jobs.silver.newest import newest", "newest", "newest.kind.name", OF_NEWEST),
    "its function": ("from jobs.silver import newest as n", "n.newest", "n.newest(rows)", OF_NEWEST),
    "a module": ("from jobs import sizes", "log('things')", "sizes.scaled(rows)", OF_SIZES),
    "a function": ("from jobs.sizes import sizes", "log('things')", "sizes(rows)", OF_SIZES),
    "its module": ("from jobs.silver import newest as n", "n.newest", "vars(n)", OF_NEWEST),
    "all": ("from jobs.sizes import *", "log('things')", "sizes(rows)", OF_SIZES),
    "a package": ("from jobs.lib import units", "log('things')", "units.unit(rows)", ("lib", "units")),
    "of a package": ("from jobs.lib import one", "log('things')", "rows.limit(one)", ("lib",)),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("changed", ["newest", "sizes", "units", "lib"])
def test_fingerprint_includes_imported_code_at_any_distance(things: Settings, use: str, changed: str) -> None:
    imports, source, returned, deciding = USES[use]
    lib = things.path("jobs/lib")
    lib.mkdir()
    files = {
        "newest": (things.path("jobs/silver/newest.py"), f"{HEAD}from jobs.sizes import sizes\n{SCALED}{GOOD}"),
        "sizes": (things.path("jobs/sizes.py"), f"from jobs.lib.units import unit\n{SCALED}sizes = scaled\n"),
        "units": (lib / "units.py", "def unit(rows):\n    return rows.limit(1)\n"),
        "lib": (lib / "__init__.py", "one = 1\n"),
    }
    for file, text in files.values():
        file.write_text(text)
    declared = f"@table(View('id', identity='id'), {source})\ndef same(rows):\n    'A.'\n    return {returned}\n"
    things.path("jobs/gold/same.py").write_text(f"{HEAD}{imports}\n{declared}")
    before = load(things)
    file, text = files[changed]
    file.write_text(text.replace("1", "2"))
    after = load(things)
    prints = [project.fingerprint(project.tables["same"], {}) for project in (before, after)]
    assert (prints[0] != prints[1]) is (changed in deciding)


def test_package_is_read_before_a_module_of_its_name(things: Settings) -> None:
    """As Python does. The code of packages around a module runs too."""
    folder = things.path("jobs/lib/sizes")
    folder.mkdir(parents=True)
    things.path("jobs/lib/sizes.py").write_text("scale = 1")
    write(things, "newest", f"from jobs.lib.sizes import scale{GOOD}")

    def fingerprint(**files: str) -> str:
        for package, text in files.items():
            things.path(f"jobs/lib/{package}/__init__.py").write_text(text)
        project = load(things)
        return project.fingerprint(project.tables["newest"], {})

    first = fingerprint(sizes="scale = 1")
    assert fingerprint(sizes="scale = 2") != first
    things.path("jobs/lib/sizes.py").write_text("scale = 3")
    assert fingerprint(sizes="scale = 1") == first
    things.path("jobs/lib/__init__.py").write_text("import math")
    assert fingerprint(sizes="scale = 1") != first


def test_fault_of_an_imported_module_is_reported_once_and_omits_its_table(things: Settings) -> None:
    things.path("jobs/sizes.py").write_text("import os\n")
    write(things, "newest", f"from jobs.sizes import os{GOOD}")
    write(things, "other", GOOD.replace("newest", "other"))
    assert refusal(things).count("imports os (jobs/sizes.py:1)") == 1
    assert [*sound_project(things)[0].tables] == ["other"]


def test_definition_is_compared_part_by_part(tmp_path: Path) -> None:
    file = tmp_path / "total.py"

    def parts(text: str) -> dict[str, str]:
        file.write_text(HEAD + textwrap.dedent(text))
        return JobFile.read(file).parts()

    then = parts('''
        @table(Aggregate("day", {"sum": Sum("a"), "n": Count()}), log("things"))
        def total(things):
            """Before."""
            return things.select("day", "a")
    ''')
    now = parts('''
        # The docstring and this comment are no part of it.
        @table(Aggregate("day", {"sum": Sum("b"), "n": Count()}, late="drop"), log("things"))
        def total(things):
            """After."""
            return things.select("day", "b")
    ''')
    changed = {part: (then.get(part), now.get(part)) for part in then | now if then.get(part) != now.get(part)}
    assert changed.pop("function") == (then["function"], now["function"])
    assert changed == {"kind option 2['sum']": ("Sum('a')", "Sum('b')"), "kind option late": (None, "'drop'")}


@pytest.mark.parametrize(
    "text",
    [
        'declare = table(Latest("id"), log("things"))\n\n@declare\ndef total(t):\n    return t\n',
        'def total(t):\n    return t\n\ntotal = table(Latest("id"), log("things"))(total)\n',
        '@table(kind=Latest("id"))\ndef total(t):\n    return t\n',
    ],
)
def test_definition_of_a_job_in_another_form_is_its_text(tmp_path: Path, text: str) -> None:
    file = tmp_path / "total.py"
    parts = []
    for job in (text, text.replace("return t", "return t.distinct()"), f"# a comment\n{text}"):
        file.write_text(HEAD + job)
        parts.append(JobFile.read(file).parts())
    assert [*parts[0]] == ["rest of the file"]
    assert parts[1] != parts[0] == parts[2]
