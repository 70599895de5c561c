"""A whole delivery is taken back at once: the batch, or the file that it came from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lake.cli import Shell
from lake.cli import lake as command_line
from lake.run.cut import pick_cut
from lake.run.inputs import Inputs
from lake.run.verify import verify
from lake.testing import Lakehouse

CONTRACT = {
    "type": "record", "name": "sales", "doc": "Something was sold.",
    "lake": {"key": ["shop"], "buckets": 2},
    "fields": [
        {"name": "shop", "type": "string", "doc": "Where."},
        {"name": "pieces", "type": "int", "doc": "How many."},
    ],
}  # fmt: skip
JOBS = {
    "last_sale": '''
from lake import Latest, log, table

@table(Latest("shop"), log("sales"))
def last_sale(sales):
    """What a shop sold last."""
    return sales.select("shop", "pieces")
''',
    "sold": '''
from lake import Aggregate, Sum, log, table

@table(Aggregate("shop", {"pieces": Sum("pieces")}), log("sales"))
def sold(sales):
    """What a shop sold in all."""
    return sales.select("shop", "pieces")
''',
}


@pytest.fixture
def lakehouse(spark, project, tmp_path: Path) -> Lakehouse:
    project.path("schemas/sales.avsc").write_text(json.dumps(CONTRACT))
    for name, text in JOBS.items():
        project.path(f"jobs/silver/{name}.py").write_text(text)
    return Lakehouse(tmp_path, tmp_path / "home")


def sales(**pieces: int) -> list[dict[str, object]]:
    return [{"shop": shop, "pieces": count} for shop, count in pieces.items()]


def test_a_delivery_is_taken_back_by_one_void(lakehouse):
    def lake(*words: str) -> Result:
        shell = Shell(project=lakehouse.settings.project)
        shell.__dict__ |= {"settings": lakehouse.settings, "spark": lakehouse.spark}
        return CliRunner().invoke(command_line, list(words), obj=shell, standalone_mode=False)

    def rows() -> list[dict[str, int]]:
        return [{row["shop"]: row["pieces"] for row in lakehouse.table(name)} for name in JOBS]

    lakehouse.land("sales", *sales(a=1, b=1)).run()
    lakehouse.land("sales", *sales(a=10, c=10), *sales(a=20)).land("sales", *sales(b=100, c=100)).run()
    assert rows() == [{"a": 20, "b": 100, "c": 100}, {"a": 31, "b": 101, "c": 110}]
    assert lake("void", "sales", "--source", "000002.jsonl", "--reason", "twice too much").exit_code == 0
    lakehouse.run()
    assert rows() == [{"a": 1, "b": 100, "c": 100}, {"a": 1, "b": 101, "c": 100}]
    lakehouse.land("sales", *sales(c=5))
    assert lake("void", "sales", "--batch", "2", "--reason", "the wrong year").stdout == "void 2: sales batch 2\n"
    lakehouse.run()
    assert rows() == [{"a": 1, "b": 1, "c": 5}, {"a": 1, "b": 1, "c": 5}]
    inputs = Inputs(lambda: lakehouse.spark, lakehouse.project, pick_cut(lakehouse.project, None), recompute=True)
    assert [verify(inputs, each).verdict for each in lakehouse.project.tables.values()] == ["identical", "identical"]
    told = json.loads(lake("explain", "last_sale", "shop=a", "--json").stdout)
    events = told["rows"][0]["from"][0]["events"]
    assert sorted(event["void"] or "" for event in events) == ["", "twice too much", "twice too much"]
    for given, said in (
        (["--batch", "2"], "batch 2 of sales is void already: 'the wrong year' (void 2)"),
        (["--batch", "9"], "sales has no batch 9, but 1 to 3"),
        (["--source", "other"], "no event of sales came from 'other'"),
        ([], "nothing to void"),
    ):
        assert said in str(lake("void", "sales", *given, "--reason", "again").exception)
