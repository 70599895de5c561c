"""Supported types of expectations, from the schemas that Great Expectations ships.

Reading schemas takes milliseconds, importing the library seconds: only judging rows imports it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lake.quality.row_conditions import ROW_CONDITIONS
from lake.quality.statistics import JUDGED_BY

# Arguments of every expectation that the gate itself handles.
OWN_ARGUMENTS: Final = {
    "batch_id",
    "catch_exceptions",
    "condition_parser",
    "description",
    "id",
    "meta",
    "metadata",
    "notes",
    "rendered_content",
    "result_format",
    "severity",
    "windows",
}

# Type names differ between engines.
TYPE_ARGUMENTS: Final = {"type_", "type_list"}
DIVERGENCE: Final = "expect_column_kl_divergence_to_be_less_than"
UNIQUE: Final = frozenset({"expect_column_values_to_be_unique", "expect_compound_columns_to_be_unique"})
OUTLIERS: Final = frozenset({"expect_column_value_z_scores_to_be_less_than", "expect_column_values_to_not_be_outliers"})
ACROSS_ROWS: Final = UNIQUE | OUTLIERS

KEYS_GONE: Final = "expect_keys_gone_since_last_edition_to_be_at_most"
ROWS_CHANGED: Final = "expect_row_count_change_since_last_edition_to_be_at_most"
SUM_CHANGED: Final = "expect_column_sum_change_since_last_edition_to_be_at_most"

EDITION_TYPES: Final[Mapping[str, tuple[frozenset[str], frozenset[str]]]] = {
    KEYS_GONE: (frozenset({"share", "rows"}), frozenset({"share"})),
    ROWS_CHANGED: (frozenset({"share"}), frozenset({"share"})),
    SUM_CHANGED: (frozenset({"column", "share"}), frozenset({"column", "share"})),
}
"""Types that compare with the last edition: arguments, required arguments.

`share`: largest share of the edition's value that may be gone or changed; `rows`: absolute limit for keys.
"""
EDITION: Final = "Edition"


@dataclass(frozen=True)
class ExpectationRule:
    type: str
    arguments: frozenset[str]
    required: frozenset[str]
    domain: str
    issues: frozenset[str]

    @property
    def is_by_row(self) -> bool:
        return self.domain.endswith("Map")

    @property
    def is_row_local(self) -> bool:
        return self.is_by_row and self.type not in ACROSS_ROWS

    @property
    def compares_editions(self) -> bool:
        return self.domain == EDITION

    @property
    def counts_only_rows(self) -> bool:
        return self.issues == {"Volume"}

    @property
    def unsupported(self) -> str:
        """Reason why the gate cannot use it, or empty."""
        if self.arguments & TYPE_ARGUMENTS:
            return "depends on the engine's names of types; let the job's function cast the column"
        if self.type == DIVERGENCE:
            return "cannot be judged exactly: it is a sum of logarithms, whose last digits depend on the machine"
        if not (
            self.compares_editions or self.type in ROW_CONDITIONS or self.type in JUDGED_BY or self.type in ACROSS_ROWS
        ):
            return "needs a SQL database"
        return ""


@cache
def known_types() -> Mapping[str, str]:
    index = json.loads((_schemas() / "index.json").read_text("utf-8"))
    files = {name: entry["schema_file"] for name, entry in index["expectations"].items()}
    return files | dict.fromkeys(EDITION_TYPES, "")


@cache
def rule_of(expectation: str) -> ExpectationRule:
    if expectation in EDITION_TYPES:
        return ExpectationRule(expectation, *EDITION_TYPES[expectation], domain=EDITION, issues=frozenset())
    schema = json.loads((_schemas() / known_types()[expectation]).read_text("utf-8"))
    properties: Mapping[str, Any] = schema["properties"]
    metadata = properties["metadata"]["properties"]
    return ExpectationRule(
        expectation,
        frozenset(properties) - OWN_ARGUMENTS,
        frozenset(schema.get("required", ())),
        metadata["domain_type"]["description"],
        frozenset(metadata["data_quality_issues"]["const"]),
    )


def _schemas() -> Path:
    package = find_spec("great_expectations")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("great_expectations")
    return Path(package.origin).parent / "expectations/core/schemas"
