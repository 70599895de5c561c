"""Location of a bucket, from settings and environment, and errors by messages of obstore, delta-rs, DuckDB and S3A."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from lake.config import Settings, StorageSettings
from lake.errors import DeclarationError, LakeError, Unavailable

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
class BucketLocation:
    """`endpoint` is empty for Amazon's own."""

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


def bucket_location(settings: Settings, url: str) -> BucketLocation:
    """Raises DeclarationError for an invalid endpoint."""
    storage = settings.storage if isinstance(settings.storage, S3Settings) else S3Settings()
    env = os.environ
    endpoint = storage.endpoint or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL", "")
    region = storage.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1"
    path_style = bool(endpoint) if storage.path_style is None else storage.path_style
    if endpoint:
        _check(endpoint, path_style)
    return BucketLocation(urlsplit(url).netloc, endpoint.rstrip("/"), region, path_style)


def _check(endpoint: str, path_style: bool) -> None:
    """Raise DeclarationError for values that crash a thread of obstore or delta-rs."""
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


FIX: Final = "try again; lake doctor shows whether the store can be reached, and what it answers"
RIGHTS: Final = "give this key (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) the rights to list, get, put and delete there"
KEYS: Final = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, both of them"
_DENIED: Final = re.compile(
    r"AccessDenied|Access Denied|status code: 403|InvalidAccessKeyId|SignatureDoesNotMatch|Forbidden|status code: 401"
)
_NO_KEY: Final = re.compile(
    r"Missing (?:SecretAccessKey|AccessKeyId)|credential provider|NoCredentials|no providers in chain"
    r"|Unable to load credentials|169\.254\.169\.254"
)
_NO_BUCKET: Final = re.compile(r"NoSuchBucket|bucket does not exist", re.I)
_WITHOUT_S3A: Final = re.compile(r"No FileSystem for scheme|Class \S*S3AFileSystem not found|UNSUPPORTED_FILE_SYSTEM")
_UNREACHABLE: Final = re.compile(
    r"Unable to execute HTTP request|Connection refused|UnknownHostException|AWSServiceIOException|status code: 5\d\d"
)
_OF_STORE: Final = re.compile(
    r"Generic S3 error|Error performing (?:GET|PUT|POST|HEAD|DELETE)|software\.amazon\.awssdk|s3a\."
    r"|SdkClientException|S3Exception|AWS\w+Exception"
)


def error_of(error: BaseException, where: str = "") -> LakeError | None:
    """Translate an error of an object store, raised by any library; None for another error."""
    text = str(error)
    module = type(error).__module__.partition(".")[0]
    if module != "obstore" and not _OF_STORE.search(text):
        return None
    where = where or next(iter(re.findall(r"s3a?://[^\s:'\",]+", text)), "")
    return access_error(text, where) or failed_request(text, where)


def read_error(error: BaseException, where: str) -> LakeError | None:
    """Translate an error of Spark that concerns the whole store; None if it may concern one object."""
    text = str(error)
    if _WITHOUT_S3A.search(text):
        return DeclarationError(
            "this Spark reads no object store",
            where=where,
            fix="start it by `lake serve connect`, or with the settings that docs/how-to/cluster.md names",
        )
    return access_error(text, where) or (failed_request(text, where) if _UNREACHABLE.search(text) else None)


def access_error(text: str, where: str) -> Unavailable | None:
    """Translate a store's message about a missing bucket, a refused key or no key; None for another message."""
    if bucket := missing_bucket(text, where):
        return bucket
    if _DENIED.search(text):
        return Unavailable("the object store refuses this key", where=where, fix=RIGHTS)
    if _NO_KEY.search(text):
        return Unavailable("no key for the object store", where=where, fix=KEYS)
    return None


def missing_bucket(text: str, where: str) -> Unavailable | None:
    if _NO_BUCKET.search(text):
        return Unavailable("there is no such bucket", where=where, fix="create it, or name another in [tool.lake]")
    return None


def failed_request(text: str, where: str) -> Unavailable:
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours
    cause = re.search(r"(Error performing \w+ \S+) in [\w.]+(?:, after \d+ retries[^-]*)? - ([^\n]*)", text)
    reason = " - ".join(cause.groups()) if cause else (text.strip().splitlines() or ["no message"])[0]
    return Unavailable(f"the object store does not answer: {reason[:300]}", where=where, fix=FIX)
