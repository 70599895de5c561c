"""Both laws of each kind, on random histories of many keys beside a model in plain Python."""

from __future__ import annotations

import os
from typing import Final

HISTORIES: Final = int(os.environ.get("HEADWATER_HISTORIES", "2000"))
"""Of so many keys; a brief run asks fewer."""
