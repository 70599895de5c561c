"""Bearer tokens: that of a request, and one that a server generates."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from lake.errors import DeclarationError


def bearer_token(headers: Mapping[str, str]) -> str:
    """Return the bearer token or a browser's Basic password; "" if there is none."""
    scheme, _, shown = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(shown, validate=True).decode("utf-8").partition(":")[2].strip()
        except ValueError:
            return ""
    return shown.strip() if scheme.lower() == "bearer" else ""


def generated_token(file: Path) -> str:
    """Return the token in `file`, made on first use. Raises DeclarationError if others can read the file."""
    if not file.exists():
        with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
            new.write(secrets.token_urlsafe(32))
    if file.stat().st_mode & 0o077:
        raise DeclarationError(
            "others can read the server's token", where=str(file), fix=f"rm {file}: the next start makes a new one"
        )
    return file.read_text("utf-8").strip()
