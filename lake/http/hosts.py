"""Names of this machine: the addresses that only it reaches, and the header Host."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

HOST: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::[0-9]*)?")
"""An IPv6 address in brackets or a name, and a port."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address, or a name of one."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def is_loopback_header(header: str) -> bool:
    """Return whether a header Host, which may be anything, has a name of this machine.

    A browser sends the name in the page's address, also if somebody made that name lead to this machine.
    """
    host = HOST.fullmatch(header)
    return host is not None and is_loopback(host[1] or host[2])
