"""Regular expressions, and texts that are taken apart or read, give Spark's values, or DuckDB refuses them."""

from __future__ import annotations

from itertools import product

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake.session.in_process.mode import Unsupported, by_duckdb
from lake.store.scan import to_arrow, to_frame
from tests.in_process.rows import answered, by_spark, in_process
from tests.in_process.test_functions import differing

PATTERNS = (
    *(
        "a",
        "ab",
        "a.c",
        "^a",
        "a$",
        "^a.*c$",
        "a|bc",
        "(a|b)c",
        "(?:a|b)c",
        "(a)(b)?",
        "x*",
        "a*",
        "a+",
        "a+?",
        "ab?c",
        "",
    ),
    *(r"\\d", r"\\d+", r"\\D", r"\\w+", r"\\W", r"\\s", r"\\s+", r"\\S+", r"\\.", r"\\d{2}", r"\\d{1,3}", r"\\d{2,}"),
    *("[abc]", "[^abc]", "[a-c]+", "[^a-c]+", "[a-zA-Z0-9_]+", "[-a]", "[a-]", r"[\\s]", r"[\\d.]+", r"[^\\w]+", "[.]"),
    *(
        "(a+)(b*)",
        "(a)|(b)",
        r"[\\\\s]",
        r"(\\d+)-(\\d+)",
        r"^(\\w+)@(\\w+)\\.com$",
        r"(\\s*)$",
        "ñ",
        "[ñé]",
        ",",
        ", ",
        "-",
        "::",
        r"\\|",
        "é?",
    ),
)
REFUSED = (
    *("(a", "a)", "[a", "a**", "(a*)*", "(ab)+", r"\\b", r"\\p{L}", "(?i)a", "a(?=b)", r"(a)\\1", "[[:alpha:]]", "a$b"),
    *("[a&&b]", "(?<n>a)", r"\\Qa\\E", r"\\t", "^^a", "a{,2}", "a++"),
)
TEXTS = (
    *(
        "",
        "a",
        "b",
        "ab",
        "abc",
        "aabbcc",
        "abcabc",
        "xaxbxc",
        "a.c",
        "a\nc",
        "a\n",
        "abc\n",
        "abc\r\n",
        "a\u2028c",
        "\x85",
    ),
    *(
        "A1 b22\tc333\x0bd",
        "12-34",
        "2024-03-10",
        "ada@mail.com",
        "ada@mail.com\n",
        "añé",
        "😀a😀",
        "é",
        "e\u0301",
        "٣",
    ),
    *(",", "a,b", ",a,,b,", "a, b", "a::b::", "a|b", "-a-", "   ", "\x00a", "\x1c", "a\\b", "a$b"),
)
CALLS = (
    "x rlike '{0}'",
    "regexp_like(x, '{0}')",
    "regexp_replace(x, '{0}', '<>')",
    "regexp_replace(x, '{0}', '')",
    "regexp_extract(x, '{0}', 0)",
    "regexp_extract(x, '{0}')",
    "regexp_extract(x, '{0}', 2)",
    "regexp_extract_all(x, '{0}', 0)",
    "regexp_extract_all(x, '{0}')",
    "split(x, '{0}')",
    "split(x, '{0}', -1)[0]",
)


FORMATS = (
    *("yyyy-MM-dd", "yyyyMMdd", "dd.MM.yyyy", "yyyy/MM/dd HH:mm", "yyyy-MM-dd HH:mm:ss", "MM-dd-yyyy", "yyyy-MM-dd HH"),
    *(r"yyyy-MM-dd\'T\'HH:mm:ss.SSS", r"yyyyMMdd\'T\'HHmmss", "dd% MM yyyy", "yyyy-MM-dd ss"),
)
WRITTEN = (
    *(
        "2024-02-29",
        "2023-02-29",
        "20240229",
        "29.02.2024",
        "2024/02/29 23:59",
        "2024-02-29 23:59:59",
        "02-29-2024",
        " ",
    ),
    *(
        "2024-02-29T10:11:12.123",
        "20240229T101112",
        "29% 02 2024",
        "0000-01-01",
        "0001-01-01",
        "9999-12-31",
        "1582-10-10",
    ),
    *("2024-13-01", "2024-00-10", "2024-1-1", "2024-02-29 24:00:00", "2024-02-29 23:60:00", "2024-02-29 23:59:60", ""),
    *("2024-02-29 ", "+2024-02-29", "\uff12024-02-29", "2024-02-29 24", "1969-12-31 23:59:59", "20240229\n"),
)


@pytest.mark.long
@pytest.mark.parametrize("function", ["to_date", "to_timestamp"])
def test_texts_are_read_as_times_like_by_spark(spark: SparkSession, function: str) -> None:
    rows = pa.table({"id": range(len(WRITTEN) + 1), "x": [*WRITTEN, None]})
    texts = [f"{function}(x, '{form}')" for form in FORMATS] + [f"{function}(x)"]
    answers = answered(rows, texts)
    assert len(answers) > len(FORMATS) - 2
    assert differing(answers, by_spark(spark, rows, answers)) == {}


@pytest.mark.parametrize("every", [12, pytest.param(1, marks=pytest.mark.long)])
def test_regular_expressions_are_those_of_spark(spark: SparkSession, every: int) -> None:
    rows = pa.table({"id": range(len(TEXTS) + 1), "x": [*TEXTS, None]})
    texts = [call.format(pattern) for call, pattern in product(CALLS, PATTERNS)][::every]
    answers = answered(rows, texts)
    assert len(answers) > len(texts) // 2
    assert differing(answers, by_spark(spark, rows, answers)) == {}


@pytest.mark.parametrize("pattern", REFUSED)
@pytest.mark.parametrize("call", CALLS[:2] + CALLS[2:10:2])
def test_pattern_that_may_mean_something_else_is_refused(call: str, pattern: str) -> None:
    with by_duckdb(), pytest.raises(Unsupported):
        to_arrow(to_frame(in_process(), pa.table({"x": ["a"]})).selectExpr(f"{call.format(pattern)} as y"))
