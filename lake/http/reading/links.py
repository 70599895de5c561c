"""Addresses of files that hold for a while: signed, so that nobody makes one, and no file's place on this machine."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lake.http.problems import Problem

KEY_BYTES: Final = 32


@dataclass(frozen=True)
class Link:
    """A file at `place`, readable while the grant with the id `grant` covers the table, until `ends` (Unix seconds)."""

    place: str
    grant: str
    schema: str
    table: str
    ends: int


@dataclass(frozen=True)
class Links:
    """The key by which addresses are signed; it outlives the server, so that they do."""

    key: bytes

    @classmethod
    def of(cls, scratch: Path) -> Links:
        """By the key in a folder that is this user's alone; made on first use."""
        file = scratch / "link.key"
        try:
            with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as new:
                new.write(secrets.token_bytes(KEY_BYTES))
        except FileExistsError:
            pass
        key = file.read_bytes()
        if len(key) != KEY_BYTES:  # a crash came between
            file.unlink()
            return cls.of(scratch)
        return cls(key)

    def signed(self, link: Link) -> str:
        """The end of an address that stands for a file. Clients know by `sp` that it needs no token."""
        said = json.dumps(list(asdict(link).values()), separators=(",", ":")).encode()
        return f"{_text(said)}?sp=r&sig={_text(self._signature(said))}"

    def opened(self, said: str, signature: str) -> Link:
        """What an address stands for. Raises Problem where it was not made here, or has expired."""
        try:
            content, shown = _bytes(said), _bytes(signature)
        except ValueError:
            raise Problem("expired", "no address of this server") from None
        if not hmac.compare_digest(shown, self._signature(content)):
            raise Problem("expired", "no address of this server")
        link = Link(*json.loads(content))
        if time.time() >= link.ends:
            raise Problem("expired", "the address held until it expired")
        return link

    def _signature(self, content: bytes) -> bytes:
        return hmac.new(self.key, b"grant\0" + content, hashlib.sha256).digest()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
