"""Connection to an OpenSearch server, and its errors."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

from opensearchpy import OpenSearch, exceptions

from lake.connect.opensearch.indexes import id_of
from lake.errors import DeclarationError, LakeError, Unavailable
from lake.sinks.server import SinkServer
from lake.sinks.sink import overtaken
from lake.text import parts_of

T = TypeVar("T")
BULK_BYTES: Final = 8 << 20
BULK_ROWS: Final = 5000
PAUSES: Final = (0.5, 1, 2, 4, 8)
"""Seconds to wait after status 429; then the delivery fails."""
MALFORMED, NOT_FOUND, CONFLICT, TOO_LARGE, TOO_MANY = 400, 404, 409, 413, 429
TRANSIENT: Final = frozenset({429, 500, 502, 503, 504})
FORBIDDEN: Final = frozenset({401, 403})
BLOCKED: Final = "cluster_block_exception"


class Document(NamedTuple):
    name: str
    json: str | None


class FailedDocument(NamedTuple):
    document: Document
    error: Mapping[str, Any]


class OpenSearchServer(SinkServer):
    schemes = ("http", "https")
    tls = "https"
    example = "http://127.0.0.1:9200"
    errors = exceptions.OpenSearchException

    @classmethod
    def is_readable(cls, url: str) -> bool:
        parts = parts_of(url)
        return parts is not None and bool(parts.hostname)

    @cached_property
    def client(self) -> OpenSearch:
        """Deliveries are retried as a whole, so the client never retries."""
        more: dict[str, Any] = {"http_auth": (self.username, self.password)} if self.username else {}
        if self.certificates:
            more["ca_certs"] = self.certificates
        if urlsplit(self.url).scheme == "https":
            more["ssl_show_warn"] = False
        return OpenSearch(self.url, timeout=self.seconds, max_retries=0, http_compress=False, **more)

    @property
    def place(self) -> str:
        parts = urlsplit(self.url)
        return f"OpenSearch at {parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 9200)}"

    def bulk(self, alias: str, documents: Sequence[Document], version: int) -> list[FailedDocument]:
        """Write documents unless a later version exists. Return the rejected ones.

        Only the last of several documents with one name is sent: a retry of an earlier one would replace it.
        """
        documents = [*{document.name: document for document in documents}.values()]
        pauses, failed = iter(PAUSES), list[FailedDocument]()
        while documents:
            answer = self._send_bulk(alias, documents, version)
            if answer is None:
                if len(documents) == 1:
                    return [*failed, FailedDocument(documents[0], {"reason": "it is larger than a request may be"})]
                half = len(documents) // 2
                first, second = documents[:half], documents[half:]
                return [*failed, *self.bulk(alias, first, version), *self.bulk(alias, second, version)]
            retried = []
            for document, item in zip(documents, answer, strict=True):
                status, error = item.get("status", 200), item.get("error") or {}
                if status == TOO_MANY:
                    retried.append(document)
                elif status >= MALFORMED and status != CONFLICT and not (status == NOT_FOUND and not error):
                    self._raise_unless_of_document(error, status)
                    failed.append(FailedDocument(document, error))
            documents = retried
            if documents:
                self._pause(pauses)
        return failed

    def _send_bulk(self, alias: str, documents: Sequence[Document], version: int) -> list[Mapping[str, Any]] | None:
        lines = []
        for name, text in documents:
            about = {"_id": id_of(name), "version": version, "version_type": "external_gte", "require_alias": True}
            lines.append(json.dumps({"delete" if text is None else "index": about}))
            if text is not None:
                lines.append(text)
        text = "\n".join(lines) + "\n"
        filtered = {"filter_path": "errors,items.*.status,items.*.error"}
        try:
            answer = self.retry(lambda: self.client.bulk(body=text, index=alias, params=filtered))
        except exceptions.TransportError as error:
            if error.status_code == TOO_LARGE:
                return None
            raise
        return [next(iter(item.values())) for item in answer["items"]]

    def retry(self, ask: Callable[[], T]) -> T:
        pauses = iter(PAUSES)
        while True:
            try:
                return ask()
            except exceptions.TransportError as error:
                if error.status_code != TOO_MANY:
                    raise
                self._pause(pauses)

    def _pause(self, pauses: Iterator[float]) -> None:
        pause = next(pauses, None)
        if pause is None:
            raise self.fault(Unavailable, "is overloaded", "try again later, or give it more memory")
        time.sleep(pause)

    def _raise_unless_of_document(self, error: Mapping[str, Any], status: int) -> None:
        kind, why = error.get("type", ""), error.get("reason", "")
        if kind == "index_not_found_exception" or (status == NOT_FOUND and kind):
            raise overtaken("another process delivers to the same indexes, or has removed them", self.where)
        if status in TRANSIENT or kind == BLOCKED:
            raise self.fault(Unavailable, f"takes no documents: {why}", "see its log, and try again")
        if status in FORBIDDEN:
            raise self.fault(DeclarationError, f"refuses: {why}", "allow the user to write the indexes")

    def as_error(self, error: Exception) -> LakeError:
        if isinstance(error, exceptions.ConnectionTimeout):
            what = f"does not answer within {self.seconds} s"
            return self.fault(Unavailable, what, "try again, or give it more `seconds`")
        if isinstance(error, exceptions.SSLError):
            what, fix = f"TLS: {error.error}", "name the authority's file: certificates = …"
            return DeclarationError(f"{self.place}: {what}", where=self.where, fix=fix)
        if isinstance(error, exceptions.ConnectionError):
            return self.fault(Unavailable, "does not answer", "try again when it does")
        if isinstance(error, exceptions.TransportError):
            return self._status_error(error)
        return self.fault(LakeError, f"failed: {type(error).__name__}", "see the server's log")

    def _status_error(self, error: exceptions.TransportError) -> LakeError:
        why, status = _reason(error), error.status_code
        if status in TRANSIENT or BLOCKED in str(error.error):
            return self.fault(Unavailable, f"could not answer: {why}", "try again; see its log")
        if status in FORBIDDEN:
            return self.fault(DeclarationError, f"refuses: {why}", "look at the user's name, password and rights")
        if status == NOT_FOUND:
            fix = "run one `lake deliver` for each target, and try again; if it was removed, --resync builds it again"
            return self.fault(Unavailable, f"has not what was there: {why}", fix)
        if status == MALFORMED:
            fix = "look at `mapping` and `settings` in the sink's file"
            return self.fault(DeclarationError, f"refuses: {why}", fix)
        return self.fault(LakeError, f"failed: {why}", "see the server's log")


def _reason(error: exceptions.TransportError) -> str:
    with suppress(AttributeError, TypeError, KeyError, IndexError):
        cause: Any = error.info["error"]  # type: ignore[index] # errors of other forms are suppressed
        while isinstance(cause.get("caused_by"), dict):
            cause = cause["caused_by"]
        return str(cause["reason"])
    return str(error.error)
