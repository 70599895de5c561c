"""Names of PyArrow and PySpark, imported on first use: a command that reads no rows starts without them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Column", "DataFrame", "F", "SparkSession", "T", "Window", "pa", "pc", "pq"]


class LazyImport:
    """Stand-in for a module, or for the object `name` in it, that imports it on the first use of an attribute."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # pickle asks for some before __init__ has run
        module = import_module(self._module)
        if self._name:  # SparkSession.builder is another one each time
            return getattr(getattr(module, self._name), attribute)
        value = getattr(module, attribute)
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from pyspark.sql import Column, DataFrame, SparkSession, Window
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
else:
    F, T = LazyImport("pyspark.sql.functions"), LazyImport("pyspark.sql.types")
    Column, DataFrame, SparkSession = (
        LazyImport("pyspark.sql", name) for name in ("Column", "DataFrame", "SparkSession")
    )
    Window = LazyImport("pyspark.sql", "Window")
    pa, pc, pq = LazyImport("pyarrow"), LazyImport("pyarrow.compute"), LazyImport("pyarrow.parquet")
