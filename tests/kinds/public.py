"""The kinds that jobs can import, by name."""

from __future__ import annotations

from typing import Final

import lake
from lake.kinds.kind import Kind

_PUBLIC = {name: getattr(lake, name) for name in lake.__all__}
KINDS: Final[dict[str, type[Kind]]] = {
    name: kind for name, kind in sorted(_PUBLIC.items()) if isinstance(kind, type) and issubclass(kind, Kind)
}
