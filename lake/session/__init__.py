"""Spark session of a process, embedded or of a server, and DuckDB in its place for small work."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from lake.lazy import SparkSession

if TYPE_CHECKING:
    from collections.abc import Callable

SessionFactory: TypeAlias = "Callable[[], SparkSession]"
"""Function that returns the session, and starts one if needed."""
