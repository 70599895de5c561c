"""Client of a bucket of S3, or of a server with its protocol.

A PUT writes the whole object or nothing. With If-None-Match exactly one of several writers succeeds. If the response of
a successful PUT is lost, its retry is rejected. So each PUT has the id of its writer, and a rejected writer reads the
id of the existing object.

The keys are those of the environment; errors raised here do not contain them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Final

import obstore
from obstore.store import S3Store

from lake.connect.s3.place import BucketLocation, error_of, failed_request, missing_bucket
from lake.errors import LakeError, Unavailable
from lake.store.storage import Entry
from lake.store.storage.objects import Object, RemoteStorage
from lake.store.storage.ranged import END, register, remember

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig, S3Config

WRITER: Final = "headwater-writer"
"""Object metadata: the id of the attempt that wrote it."""
RETRIES: Final = 5
REQUEST_OBJECTS: Final = 1000
"""Maximum number of objects that one request lists or deletes."""
COPY_BYTES: Final = 5 << 30
"""Size of the largest object that S3 copies by one request."""


@dataclass(frozen=True)
class Bucket(RemoteStorage):
    location: BucketLocation
    staging: Path | None = field(default=None, compare=False)

    @property
    def options(self) -> dict[str, str]:
        """Options for delta-rs, which reads the keys from the environment."""
        options = {
            "aws_region": self.location.region,
            "aws_virtual_hosted_style_request": "false" if self.location.path_style else "true",
            "aws_conditional_put": "etag",
        }
        if not self.location.endpoint:
            # Otherwise delta-rs queries the machine's metadata service, and warns.
            os.environ.setdefault("AWS_REGION", self.location.region)
            return options
        return {**options, "aws_endpoint": self.location.host, "aws_allow_http": str(self.location.is_plain).lower()}

    def of(self, url: str) -> Bucket:
        name = url.removeprefix("s3://").partition("/")[0]
        return self if name == self.location.bucket else bucket(replace(self.location, bucket=name), self.staging)

    @cached_property
    def _client(self) -> S3Store:
        config: S3Config = {
            "region": self.location.region,
            "virtual_hosted_style_request": not self.location.path_style,
        }
        if self.location.endpoint:
            config["endpoint"] = self.location.host
        client_options: ClientConfig = {"allow_http": self.location.is_plain}
        return S3Store(
            self.location.bucket, config=config, client_options=client_options, retry_config={"max_retries": RETRIES}
        )

    def _key(self, url: str) -> str:
        return url.removeprefix(f"s3://{self.location.bucket}").strip("/")

    def end(self, url: str, most: int) -> tuple[bytes, int, float]:
        with store_errors(url):
            try:
                result = obstore.get(self._client, self._key(url), options={"range": {"suffix": most}})
            except obstore.exceptions.BaseError:
                result = obstore.get(self._client, self._key(url))  # an empty object has no range
            meta = result.meta
            return bytes(result.bytes()), meta["size"], meta["last_modified"].timestamp()

    def part(self, url: str, start: int, size: int, tag: str = "") -> bytes:
        options: GetOptions = {}
        if size:
            options["range"] = (start, start + size)
        if tag:
            options["if_match"] = tag
        with store_errors(url):
            try:
                return bytes(obstore.get(self._client, self._key(url), options=options).bytes())
            except obstore.exceptions.PreconditionError:
                raise FileNotFoundError(2, "No such file", url) from None

    def list(self, url: str, *, deep: bool = False, after: str = "") -> Iterator[Entry]:
        prefix = f"{self._key(url)}/".lstrip("/")
        parts: Iterator[Sequence[ObjectMeta]] = iter(())
        with store_errors(url):
            if deep or after:
                offset = f"{prefix}{after}" if after else None
                parts = obstore.list(self._client, prefix or None, offset=offset, chunk_size=REQUEST_OBJECTS)
                found = [_entry(meta, prefix) for meta in next(parts, []) if _is_below(meta, prefix)]
            else:
                listed = obstore.list_with_delimiter(self._client, prefix or None)
                found = [_entry(meta, prefix) for meta in listed["objects"] if _is_below(meta, prefix)]
                found += [Entry(f"{name.removeprefix(prefix)}/", 0, 0) for name in listed["common_prefixes"]]
                found.sort(key=lambda entry: entry.name)
        if not found:
            raise FileNotFoundError(2, "No such folder", url)
        while found:
            yield from (entry for entry in found if entry.name > after)  # an offset loses its last slash
            with store_errors(url):  # by name, and only as far as it is consumed
                found = [_entry(meta, prefix) for meta in next(parts, []) if _is_below(meta, prefix)]

    def put_if_absent(self, url: str, content: bytes) -> str | None:
        writer = token_hex(16)
        try:
            put = obstore.put(self._client, self._key(url), content, mode="create", attributes={WRITER: writer})
        except obstore.exceptions.AlreadyExistsError:
            return "" if self._writer(url) == writer else None
        except (obstore.exceptions.BaseError, OSError) as error:
            with store_errors(url):  # it may exist: the response may have been lost
                existing = self._writer(url)
            if existing is None:
                raise request_error(url, error) from None
            return "" if existing == writer else None
        return put["e_tag"] or ""

    def put_file(self, url: str, file: Path) -> None:
        about = file.stat()
        content = file.read_bytes() if about.st_size <= END else None
        with store_errors(url):
            obstore.put(self._client, self._key(url), file if content is None else content)
        if content is not None:
            remember(url, content, about.st_mtime)

    def copy(self, source: Object, url: str) -> None:
        with store_errors(url):
            if source.address.storage == self and source.size <= COPY_BYTES:  # the server copies
                obstore.copy(self._client, self._key(str(source)), self._key(url))
            else:
                with source.open() as content:
                    obstore.put(self._client, self._key(url), content)

    def _writer(self, url: str) -> str | None:
        """Return the id of the attempt that wrote the file; "" if unknown, None if there is no file."""
        with store_errors(url):
            try:
                return str(obstore.get(self._client, self._key(url)).attributes.get(WRITER, ""))
            except FileNotFoundError:
                return None

    def delete_all(self, urls: Sequence[str]) -> None:
        for start in range(0, len(urls), REQUEST_OBJECTS):
            with store_errors(urls[start]):
                obstore.delete(self._client, [self._key(url) for url in urls[start : start + REQUEST_OBJECTS]])

    def head(self, url: str) -> Entry | None:
        with store_errors(url):
            try:
                meta = obstore.head(self._client, self._key(url))
            except FileNotFoundError:
                return None
        return Entry(url.rpartition("/")[2], meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


def _is_below(meta: ObjectMeta, prefix: str) -> bool:
    """Return False for the empty object that some tools create for the folder itself."""
    return meta["path"].startswith(prefix)


def _entry(meta: ObjectMeta, prefix: str) -> Entry:
    name = meta["path"].removeprefix(prefix)
    return Entry(name, meta["size"], meta["last_modified"].timestamp(), meta["e_tag"] or "")


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Raise the store's errors about `url` as Unavailable, or as a FileNotFoundError of one line."""
    try:
        yield
    except FileNotFoundError as error:
        if no_bucket := missing_bucket(str(error), url):
            raise no_bucket from None
        raise FileNotFoundError(2, "No such file", url) from None
    except obstore.exceptions.InvalidPathError as error:
        raise Unavailable(
            f"an object has a name that cannot be read: {_invalid_name(error)}",
            where=url,
            fix="rename or delete it: names have no control characters, and no empty or dotted parts",
        ) from None
    except obstore.exceptions.BaseError as error:
        raise request_error(url, error) from None


def request_error(url: str, error: BaseException) -> LakeError:
    return error_of(error, url) or failed_request(str(error), url)


def _invalid_name(error: BaseException) -> str:
    found = re.search(r'Error parsing Path (".*?"):', str(error), re.S)
    return ascii(found[1] if found else str(error))[:300]


@cache
def bucket(location: BucketLocation, staging: Path | None) -> Bucket:
    client = Bucket(location, staging)
    register(client, "s3", location.bucket)
    return client
