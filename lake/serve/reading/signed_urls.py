"""Signed and encrypted URLs of files, valid for a limited time. They reveal no path of this machine."""

from __future__ import annotations

import base64
import json
import time
from dataclasses import asdict, dataclass

from cryptography.fernet import Fernet, InvalidToken

from lake.serve.problems import Problem


@dataclass(frozen=True)
class FileLink:
    """File at `place`, readable until `ends` (Unix seconds) while the grant with the id `grant` covers the table."""

    place: str
    grant: str
    schema: str
    table: str
    ends: int


@dataclass(frozen=True)
class UrlSigner:
    """Key of URLs, 32 bytes, stored so that URLs stay valid across restarts."""

    key: bytes

    def sign(self, link: FileLink) -> str:
        """Return the last part of a file's URL. `sp` marks it for Delta Sharing clients as needing no token."""
        return f"{self._fernet.encrypt(json.dumps(asdict(link)).encode()).decode()}?sp=r"

    def verify(self, text: str) -> FileLink:
        try:
            link = FileLink(**json.loads(self._fernet.decrypt(text.encode())))
        except InvalidToken:
            raise Problem("expired", "no address of this server") from None
        if time.time() >= link.ends:
            raise Problem("expired", "the address has expired")
        return link

    @property
    def _fernet(self) -> Fernet:
        return Fernet(base64.urlsafe_b64encode(self.key))
