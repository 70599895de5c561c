from __future__ import annotations

from typing import TYPE_CHECKING

from lake import Latest, log, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@table(Latest("handle", sequence="changed_at", deletes="_op = 'delete'"), log("profiles"))
def current_profile(profiles: DataFrame) -> DataFrame:
    """A member's profile as it stands: its newest change.

    changed_at: of the newest change, UTC
    """
    return profiles.selectExpr("handle", "name", "about", "changed_at", "op as _op")
