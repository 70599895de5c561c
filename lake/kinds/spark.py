"""Names of PySpark, imported on first use: a job is imported in milliseconds without them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["Column", "DataFrame", "F", "T", "Window"]

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Window
    from pyspark.sql import functions as F
    from pyspark.sql import types as T
else:

    class _Lazy:
        def __init__(self, module: str, name: str = "") -> None:
            self._module, self._name = module, name

        def __getattr__(self, attribute: str) -> Any:
            module = import_module(self._module)
            value = getattr(getattr(module, self._name) if self._name else module, attribute)
            setattr(self, attribute, value)
            return value

    F, T = _Lazy("pyspark.sql.functions"), _Lazy("pyspark.sql.types")
    Column, DataFrame, Window = (_Lazy("pyspark.sql", name) for name in ("Column", "DataFrame", "Window"))
