"""Signed URLs of files, valid for a limited time. They reveal no path of this machine."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from dataclasses import asdict, dataclass

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
    """Signing key of URLs, stored so that URLs stay valid across restarts."""

    key: bytes

    def sign(self, link: FileLink) -> str:
        """Return the last part of a file's URL. `sp` marks it for Delta Sharing clients as needing no token."""
        content = json.dumps(list(asdict(link).values()), separators=(",", ":")).encode()
        return f"{_text(content)}?sp=r&sig={_text(self._signature(content))}"

    def verify(self, text: str, signature: str) -> FileLink:
        try:
            content, shown = _bytes(text), _bytes(signature)
        except ValueError:
            raise Problem("expired", "no address of this server") from None
        if not hmac.compare_digest(shown, self._signature(content)):
            raise Problem("expired", "no address of this server")
        link = FileLink(*json.loads(content))
        if time.time() >= link.ends:
            raise Problem("expired", "the address held until it expired")
        return link

    def _signature(self, content: bytes) -> bytes:
        return hmac.new(self.key, b"grant\0" + content, hashlib.sha256).digest()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
