"""Loopback test for addresses and Host headers."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::[0-9]*)?")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address or host name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def is_loopback_header(header: str) -> bool:
    """Return whether a Host header, which is untrusted, names this machine.

    A browser sends the name in the page's address. So a foreign name that resolves to this machine (DNS rebinding)
    fails.
    """
    host = HOST.fullmatch(header)
    return host is not None and is_loopback(host[1] or host[2])
