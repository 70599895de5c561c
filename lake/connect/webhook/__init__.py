"""Webhook as a target: a signed POST for each change of a row, or for a batch. See docs/how-to/sink-webhook.md.

Delivery is at least once: after a crash it repeats the messages since the last record of its progress. A message that
is rejected (4xx), or fails in all attempts, is stored as undelivered, and later changes of that row wait. If the
receiver accepts nothing, the delivery stops, and the next one resumes it.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any, Final

from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from lake.connect.webhook.receiver import Receiver, WebhookLimits
from lake.connect.webhook.target import WebhookTarget
from lake.contracts.declared_files import FromEnvironment
from lake.errors import DeclarationError
from lake.sinks.kind import OptionTable, SinkDeclaration, SinkKind
from lake.sinks.sink import Target
from lake.text import parts_of

LIMITS: Final[Mapping[str, int]] = asdict(WebhookLimits())
OPTIONS: Final[OptionTable] = {
    "url": (str, None),
    "secret": (str, None),
    "headers": (dict, {}),
    "ordered": (bool, True),
    "batch": (int, 1),
    **{name: (int, default) for name, default in LIMITS.items()},
}
KEEPS: Final = "its receiver keeps what it was sent"
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE: Final = re.compile(r"(?! )[ -~]*(?<! )")
SECRET_NAMES: Final = ("authorization", "cookie", "token", "secret", "key", "password")


def _open(declaration: SinkDeclaration) -> Target:
    options, receiver = declaration.options, receiver_of(declaration.options, declaration.where)
    return WebhookTarget(declaration.settings, declaration.name, receiver, options["batch"], ordered=options["ordered"])


def receiver_of(options: Mapping[str, Any], where: str) -> Receiver:
    DeclarationError.raise_any(_faults(options), where)
    limits = WebhookLimits(**{name: options[name] for name in LIMITS})
    headers = {name: str(value) for name, value in options["headers"].items()}
    return Receiver(where, str(options["url"]), str(options["secret"]), headers, limits)


def _faults(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if not _is_url(options["url"]):
        yield "url is no http or https URL", 'for example url = "https://crm.example.com/changes"'
    if not isinstance(options["secret"], FromEnvironment):
        yield "secret must come from the environment", 'secret = "env:NAME"'
    elif not _is_secret(options["secret"]):  # it is not shown
        yield "secret is no secret of Standard Webhooks", "write whsec_ and the base64 of 24 random bytes"
    for name, value in options["headers"].items():
        if not HEADER_NAME.fullmatch(name):
            yield f"[headers] {name!r} is no name of a header", "use letters, digits and -"
        elif not isinstance(value, str) or not HEADER_VALUE.fullmatch(value):
            yield f"[headers] {name!r} must be a line of ASCII without spaces around it", 'a secret is "env:NAME"'
        elif name.lower().startswith("webhook-"):
            yield f"[headers] {name!r} cannot be set", "leave it out: it is part of the signature"
        elif any(part in name.lower() for part in SECRET_NAMES) and not isinstance(value, FromEnvironment):
            yield f"[headers] {name!r} is a secret, and must come from the environment", f'{name} = "env:NAME"'


def _is_url(url: str) -> bool:
    parts = parts_of(url)
    return parts is not None and parts.scheme in {"http", "https"} and bool(parts.hostname)


def _is_secret(secret: str) -> bool:
    try:
        return bool(Webhook(str(secret)))
    except (EmptyWebhookSecretError, RuntimeError, binascii.Error, ValueError):
        return False


KIND: Final = SinkKind(_open, modes=("append",), options=OPTIONS, loose=("append",), keeps=KEEPS, begin="now")
