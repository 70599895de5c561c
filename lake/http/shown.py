"""The token that a request shows."""

from __future__ import annotations

import base64
from collections.abc import Mapping


def shown_token(headers: Mapping[str, str]) -> str:
    """The token, as a bearer's or as a browser's password; "" where there is none."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(shown, validate=True).decode("utf-8").partition(":")[2].strip()
        except ValueError:
            return ""
    return shown.strip() if scheme.lower() == "bearer" else ""
