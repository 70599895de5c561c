"""Connection settings of a target server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Self

from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError, LakeError
from lake.sinks.kind import OptionTable
from lake.text import ENCODED, has_password, parts_of

SERVER_OPTIONS: Final[OptionTable] = {
    "url": (str, None),
    "username": (str, ""),
    "password": (str, ""),
    "certificates": (str, ""),
    "prefix": (str, ""),
}
"""Options of every such sink, besides `seconds`, whose default differs."""


@dataclass(frozen=True)
class SinkServer:
    """Server of a target. Subclasses add a cached property `client`, a `place`, and the LakeError for each of `errors`.

    `tls` is the scheme that encrypts. `certificates` is a file, "" for those of the system.
    """

    schemes: ClassVar[Sequence[str]]
    tls: ClassVar[str]
    example: ClassVar[str]
    errors: ClassVar[type[Exception]]

    url: str = field(repr=False)
    username: str
    password: str = field(repr=False)
    certificates: str
    seconds: int
    where: str

    @classmethod
    def of(cls, options: Mapping[str, Any], where: str) -> Self:
        DeclarationError.raise_any(cls._faults(options), where)
        names = ("url", "username", "password", "certificates", "seconds")
        return cls(**{name: options[name] for name in names}, where=where)

    def close(self) -> None:
        if "client" in self.__dict__:
            self.__dict__["client"].close()

    @property
    def place(self) -> str:
        raise NotImplementedError

    def as_error(self, error: Exception) -> LakeError:
        raise NotImplementedError

    def fault(self, kind: type[LakeError], what: str, fix: str) -> LakeError:
        return kind(f"{self.place} {what}", where=self.where, fix=fix)

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        try:
            yield
        except self.errors as error:
            raise self.as_error(error) from None
        except OSError as error:
            what, fix = f"certificates: {error.strerror or error}", "name a PEM file of certificates"
            raise DeclarationError(what, where=self.where, fix=fix) from None

    @classmethod
    def is_readable(cls, url: str) -> bool:
        return parts_of(url) is not None

    @classmethod
    def _faults(cls, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        url, scheme = options["url"], options["url"].partition("://")[0].lower()
        if has_password(url) and not isinstance(url, FromEnvironment):
            yield "url: it has a password", 'take it from the environment: url = "env:NAME"'
        elif scheme not in cls.schemes:
            *others, last = (f"{scheme}://" for scheme in cls.schemes)
            yield f"url: it does not begin with {', '.join(others)} or {last}", f"for example {cls.example}"
        elif not cls.is_readable(url):  # not shown, as it may have a secret
            yield "url: it cannot be read", f"for example {cls.example}; {ENCODED}"
        if options["password"] and not isinstance(options["password"], FromEnvironment):
            yield "password: it is in the file", 'take it from the environment: "env:NAME"'
        if options["certificates"] and scheme != cls.tls:
            yield "certificates: the url is not of TLS", f"begin it with {cls.tls}://"
