"""Authentication of event producers: a bearer token per stream, or a signature (Standard Webhooks)."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import compare_digest

from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from lake.config import Settings
from lake.contracts.declared_files import ENVIRONMENT, filled_in
from lake.errors import DeclarationError
from lake.serve.problems import Problem
from lake.serve.source import DeclaredIntake
from lake.serve.tokens import bearer_token
from lake.session import file_modes
from lake.session.file_modes import generated_token

SIGNATURE_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")


@dataclass(frozen=True)
class Access:
    tokens: Mapping[str, str]
    webhooks: Mapping[str, Webhook]
    token_file: Path | None

    @classmethod
    def of(cls, settings: Settings, declared: DeclaredIntake) -> Access:
        """Streams without a token share a generated one, in `token_file`.

        Raises DeclarationError if a variable is unset, a secret is malformed, or others can read the token file.
        """
        tokens = _from_environment("token", declared.tokens, declared.where)
        secrets = _from_environment("secret", declared.secrets, declared.where)
        webhooks = {stream: _webhook(stream, secret, declared.where) for stream, secret in secrets.items()}
        rest = [stream for stream in declared.streams if stream not in tokens]
        file = file_modes.scratch(settings, "http") / f"{declared.name}.token" if rest else None
        if file is not None:
            tokens |= dict.fromkeys(rest, generated_token(file))
        return cls(tokens, webhooks, file)

    def has_token_or_signature(self, stream: str, headers: Mapping[str, str]) -> bool:
        """Return True for the stream's token, False for a signature, which is checked when the body is complete.

        Raises Problem if there is neither.
        """
        authorization = headers.get("authorization", "")
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() == "bearer" and _is_equal(token.strip(), self.tokens[stream]):
            return True
        if stream in self.webhooks and all(name in headers for name in SIGNATURE_HEADERS):
            return False
        raise Problem("no-token", f"{'a wrong' if authorization else 'no'} token for {stream}")

    def check_signature(self, stream: str, headers: Mapping[str, str], body: bytes) -> None:
        try:
            self.webhooks[stream].verify(body, {name: headers[name] for name in SIGNATURE_HEADERS}, json_parse=False)
        except WebhookVerificationError as error:
            raise Problem("bad-signature", str(error)) from None
        except (ValueError, binascii.Error):  # a header or a body that is not text
            raise Problem("bad-signature", "the signature's headers or the body cannot be read") from None

    def streams(self, headers: Mapping[str, str]) -> list[str]:
        """Return the streams to which the request's token belongs."""
        sent = bearer_token(headers)
        return [stream for stream, token in self.tokens.items() if _is_equal(sent, token)]


def _is_equal(sent: str, token: str) -> bool:
    return compare_digest(sent.encode(), token.encode())


def _from_environment(option: str, by_stream: Mapping[str, str], where: str) -> dict[str, str]:
    secrets: dict[str, str] = {stream: filled_in(text, option, where) for stream, text in by_stream.items()}
    empty = [by_stream[stream].removeprefix(ENVIRONMENT) for stream, secret in secrets.items() if not secret]
    DeclarationError.raise_any(((f"{option}: {name} is empty", f"export {name}=…") for name in empty), where)
    return secrets


def _webhook(stream: str, secret: str, where: str) -> Webhook:
    try:
        return Webhook(secret)
    except (ValueError, RuntimeError):
        fix = "write it as its sender shows it: whsec_ and base64"
        raise DeclarationError(f"the secret of {stream} is none of Standard Webhooks", where=where, fix=fix) from None
