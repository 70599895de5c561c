"""Client of Spark Connect: the server of a session, its token, and its errors."""

from __future__ import annotations

import logging
import os
import re
import socket
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from lake.config import Settings
from lake.errors import DeclarationError, Unavailable
from lake.lazy import SparkSession

TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
"""Environment variable of a Connect server's token; Spark's own name, for server and client."""

DETACHED: Final = {
    "spark.connect.execute.reattachable.senderMaxStreamDuration": "10s",  # a living client reattaches to it
    "spark.connect.execute.manager.detachedTimeout": "10s",
    "spark.connect.execute.manager.maintenanceInterval": "5s",
}
"""Cancel abandoned work within half a minute; the default is five minutes."""
BINDING: Final = "spark.connect.grpc.binding.address"

HOST: Final = "127.0.0.1"
"""Address on which servers of a project listen."""
LOOPBACK: Final = frozenset({"localhost", HOST, "::1"})
CONNECT_SECONDS: Final = 5.0
RETRIES: Final = 6  # a lost server is is_set up after about four seconds
START: Final = "start the server (`lake serve connect`) and try again, or unset SPARK_REMOTE (or spark.remote)"


def server(settings: Settings) -> str:
    """Return the address of the Spark Connect server to use, `sc://…`; "" for an embedded session."""
    return settings.spark.remote or os.environ.get("SPARK_REMOTE", "")


def is_local(settings: Settings) -> bool:
    """Return whether an embedded session runs in one JVM."""
    return f"{settings.spark.master}[".startswith("local[")


def shares_disk(settings: Settings) -> bool:
    return is_here(settings) if settings.spark.shares_disk is None else settings.spark.shares_disk


def is_here(settings: Settings) -> bool:
    """Return whether all of Spark runs on this machine."""
    address = server(settings)
    return _endpoint(address)[0] in LOOPBACK if address else is_local(settings)


def binding_conf(port: int) -> dict[str, str]:
    return {BINDING: HOST, "spark.connect.grpc.binding.port": str(port)}


def token_file(settings: Settings) -> Path:
    """`lake serve connect` writes it, and this project's commands read it."""
    return settings.path(".lake/spark/connect.token")


def connected(settings: Settings, address: str) -> SparkSession:
    """Raises Unavailable if the server does not respond, DeclarationError for a wrong address or token."""
    host, port = _endpoint(address)
    _load_token(settings, address, host, port)
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise Unavailable(
            f"no Spark Connect server responds: {error.strerror or error}", where=shown(address), fix=START
        ) from None
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # Both would report a lost server before this project's own message, and at greater length.
    logging.getLogger("pyspark.sql.connect").disabled = True
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
    try:
        spark: SparkSession = SparkSession.builder.remote(address).getOrCreate()
        spark.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, backoff_multiplier=2.0)])
        spark.version  # noqa: B018  the first request to the server
    except Exception as error:
        raise _refusal(error, shown(address)) from error
    return spark


def _endpoint(address: str) -> tuple[str, int]:
    """Return host and port of `sc://host:port/;token=…`. Raises DeclarationError for another form."""
    try:
        parts = urlsplit(address)
        if parts.scheme == "sc" and parts.hostname:
            return parts.hostname, parts.port or 15002
    except ValueError:
        pass
    raise DeclarationError(
        "not the address of a Spark Connect server",
        where=f"SPARK_REMOTE or spark.remote: {shown(address)}",
        fix="write sc://localhost:15002, as `lake serve connect` prints it",
    )


def is_listening(host: str, port: int) -> bool:
    with suppress(OSError):
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
        return True
    return False


def _load_token(settings: Settings, address: str, host: str, port: int) -> None:
    """For a server on this machine, set the token that `lake serve connect` has stored, unless there is one.

    Raises DeclarationError for a host to which Spark sends no token: without TLS every name but `localhost`.
    """
    is_set = TOKEN in os.environ or ";token=" in address
    file = token_file(settings)
    if not is_set and host in LOOPBACK and file.exists():
        os.environ[TOKEN] = file.read_text().strip()
        is_set = True
    if is_set and host in LOOPBACK - {"localhost"} and "use_ssl=true" not in address:
        raise DeclarationError(
            f"with a token the host must be localhost, found {host}",
            where="SPARK_REMOTE or spark.remote",
            fix=f"write {urlsplit(shown(address))._replace(netloc=f'localhost:{port}').geturl()}",
        )


def _refusal(error: Exception, where: str) -> DeclarationError | Unavailable:
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    if status(error) == "UNAUTHENTICATED":
        return DeclarationError(
            "the Spark Connect server does not accept this token",
            where=where,
            fix=f"set {TOKEN} to the server's token, or leave it unset if `lake serve connect` runs in this project",
        )
    return Unavailable(f"Spark Connect: {first}", where=where, fix="lake doctor")


def status(error: BaseException) -> str:
    """Return the gRPC status of an error of Spark Connect, "" of others."""
    code = getattr(error, "getGrpcStatusCode", lambda: None)()
    return getattr(code, "name", "")


def shown(address: str) -> str:
    return re.sub(r"token=[^;]*", "token=…", address)
