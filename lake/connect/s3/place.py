"""Place of a bucket: its server, region and addressing, from the settings and the environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from lake.config import Settings, StorageSettings
from lake.errors import DeclarationError

_ENDPOINT: Final = re.compile(
    r"https?://(?:(?P<address>\d+(?:\.\d+){3}|\[[0-9a-fA-F:.]+\])|[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)"
    r"(?::(?P<port>\d{1,5}))?(?:/[^\s?#@]*)?"
)


@dataclass(frozen=True, kw_only=True)
class S3Settings(StorageSettings):
    """Settings of S3, or of a server with its protocol.

    `endpoint` is the URL of a server that is not Amazon's, by default AWS_ENDPOINT_URL; `region` is by default
    AWS_REGION, else us-east-1. With `path_style`, by default if there is an endpoint, a bucket is in the path of a URL
    and not in its host name.
    """

    endpoint: str = ""
    region: str = ""
    path_style: bool | None = None


@dataclass(frozen=True)
class Place:
    """Bucket and its access. `endpoint` is empty for Amazon's own."""

    bucket: str
    endpoint: str
    region: str
    path_style: bool

    @property
    def is_plain(self) -> bool:
        return self.endpoint.startswith("http://")

    @property
    def host(self) -> str:
        """Endpoint as delta-rs and obstore take it: with the bucket if that is part of the host name."""
        scheme, _, host = self.endpoint.partition("://")
        return self.endpoint if self.path_style or not host else f"{scheme}://{self.bucket}.{host}"


def place(settings: Settings, url: str) -> Place:
    """Return the bucket of a URL of an object store. Raises DeclarationError for an invalid endpoint."""
    storage = settings.storage if isinstance(settings.storage, S3Settings) else S3Settings()
    env = os.environ
    endpoint = storage.endpoint or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL", "")
    region = storage.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
    path_style = bool(endpoint) if storage.path_style is None else storage.path_style
    if endpoint:
        _check(endpoint, path_style)
    return Place(urlsplit(url).netloc, endpoint.rstrip("/"), region, path_style)


def _check(endpoint: str, path_style: bool) -> None:
    """Raise DeclarationError for values on which obstore and delta-rs would end a thread."""
    found = _ENDPOINT.fullmatch(endpoint)
    if not found or not 0 < int(found["port"] or 1) < 1 << 16:
        shown = "" if "@" in endpoint else f": {endpoint}"
        raise DeclarationError(
            f"the endpoint of the object store is not the URL of a server{shown}",
            where="storage.endpoint, or AWS_ENDPOINT_URL",
            fix='endpoint = "https://s3.example.org", or with a port; leave it out for Amazon\'s own',
        )
    if found["address"] and not path_style:
        raise DeclarationError(
            f"{found['address']} is an address, and the name of a bucket cannot be put before it",
            where="storage.path_style",
            fix="path_style = true, or leave it out",
        )
