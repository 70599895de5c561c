"""TLS for tests: a certificate of this machine, and a proxy that ends TLS before a server without it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from asyncio import (
    AbstractEventLoop,
    StreamReader,
    StreamWriter,
    all_tasks,
    current_task,
    gather,
    new_event_loop,
    open_connection,
    start_server,
)
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread


def certificate() -> bytes:
    """Return a key, and a certificate of 127.0.0.1 signed with it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return private + signed.public_bytes(serialization.Encoding.PEM)


@contextmanager
def front(port: int, file: Path) -> Iterator[int]:
    """Run a TLS proxy with the key and certificate in `file` before the server on `port`; yield its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    context.set_alpn_protocols(["h2"])

    async def relayed(reader: StreamReader, writer: StreamWriter) -> None:
        with suppress(OSError):
            server, to_server = await open_connection("127.0.0.1", port)
            await gather(copied(reader, to_server), copied(server, writer))

    async def copied(source: StreamReader, target: StreamWriter) -> None:
        with suppress(OSError):
            while part := await source.read(1 << 16):
                target.write(part)
                await target.drain()
        target.close()

    async def ended(loop: AbstractEventLoop) -> None:
        for task in all_tasks(loop) - {current_task(loop)}:
            task.cancel()
        await loop.shutdown_asyncgens()

    loop = new_event_loop()
    server = loop.run_until_complete(start_server(relayed, "127.0.0.1", 0, ssl=context))
    thread = Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(ended(loop))
        loop.close()
