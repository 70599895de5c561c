"""Addresses of servers, as URLs: passwords in them, and their form in messages."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import SplitResult, urlsplit

LOGIN: Final = re.compile(r"://.*:.*@", re.DOTALL)
"""User and password, also with reserved signs: for `me:a/b@host`, a client would look for the host `me`."""
OPTION: Final = re.compile(r"[?&](?:ssl)?password=")
ENCODED: Final = "percent-encode the signs / ? # [ ] @ of its user and password: / is %2F, @ is %40"


def has_password(address: str) -> bool:
    return bool(LOGIN.search(address) or OPTION.search(address))


def without_login(address: str) -> str:
    """Return the address for messages: without user, password and options.

    Without the host too, if a password may be among the options.
    """
    scheme, _, rest = address.partition("://")
    place, _, options = rest.partition("?")
    return f"{scheme}://…" if "@" in options else f"{scheme}://{place.rpartition('@')[2]}"


def parts_of(address: str) -> SplitResult | None:
    """Return the parts of a URL; None if clients cannot read it, as with a port above 65535 or the host `a..b`, or a
    reserved sign in its user or password divides it.
    """
    try:
        parts = urlsplit(address)
        host, port = (parts.hostname or "").encode("idna").decode("idna"), parts.port
    except ValueError:
        return None
    is_divided = parts.password is None and LOGIN.search(address) is not None
    fits = port != 0 and "%" not in host and address.isprintable() and " " not in address
    return parts if fits and not is_divided else None
