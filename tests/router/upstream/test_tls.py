"""Both sides of the relay over TLS: `Upstream` to a node, and our protocol to a caller."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from router.client.error_dialects import refusal_body
from router.upstream.http_client import Upstream
from serving.http.callers import Callers
from serving.http.client_connection import protocol_of
from serving.http.exchange import Message, Receive, Send

BODY = bytes(range(256)) * 8192
HEAD = b"POST / HTTP/1.1\r\nhost: node\r\ncontent-length: %d\r\n\r\n" % len(BODY)
WAIT_S = 10.0


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A key and a certificate of this machine's in one file, which everybody here trusts."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    (tmp_path / "openssl.cnf").write_text(
        "[req]\ndistinguished_name=name\nx509_extensions=more\nprompt=no\n"
        "[name]\nCN=localhost\n[more]\nsubjectAltName=DNS:localhost\n"
    )
    argv = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    argv += ["-config", str(tmp_path / "openssl.cnf"), "-keyout", str(key), "-out", str(cert)]
    subprocess.run(argv, check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + cert.read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    return both


async def echo(scope: Message, receive: Receive, send: Send) -> None:
    """Answers with the scheme, the client's port and the body, in chunks as they arrive."""
    await send({"type": "http.response.start", "status": 200})
    piece, more = f"{scope['scheme']} {scope['client'][1]} ".encode(), True
    while more:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        message = await receive()
        piece, more = message["body"], message["more_body"]
    await send({"type": "http.response.body", "body": piece})


@pytest.fixture
async def port(certificate: Path) -> AsyncIterator[int]:
    config = uvicorn.Config(
        echo,
        http=protocol_of(Callers(refusal_body)),
        ws="none",
        lifespan="off",
        log_config=None,
        port=0,
        ssl_certfile=certificate,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    async with asyncio.timeout(WAIT_S):
        while not server.started:
            await asyncio.sleep(0)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await asyncio.wait_for(serving, WAIT_S)


async def test_bodies_pass_both_ways_on_one_kept_connection(port: int) -> None:
    upstream = Upstream(f"https://localhost:{port}")
    async with asyncio.timeout(WAIT_S):
        answers = {await (await upstream.send(HEAD, BODY)).read_all() for _ in range(3)}
    (answer,) = answers  # from one port of the client's
    scheme, _port, body = answer.split(b" ", 2)
    assert (scheme, body) == (b"https", BODY)
    upstream.close()


async def test_a_node_without_a_trusted_certificate_is_sent_nothing(
    port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(OSError, match="certificate verify failed"):
        await Upstream(f"https://localhost:{port}").send(HEAD, BODY)
