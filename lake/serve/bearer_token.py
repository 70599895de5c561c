"""Token of a request's Authorization header."""

from __future__ import annotations

import base64
from collections.abc import Mapping


def bearer_token(headers: Mapping[str, str]) -> str:
    """Return the bearer token or a browser's Basic password; "" if there is none."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(shown, validate=True).decode("utf-8").partition(":")[2].strip()
        except ValueError:
            return ""
    return shown.strip() if scheme.lower() == "bearer" else ""
