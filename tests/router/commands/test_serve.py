import asyncio
import contextlib
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.migrate import open_migrated
from router.app import open_core
from router.commands import serve
from router.commands.client import RouterAccess
from router.errors import StartError
from router.settings import Settings, read_settings
from serving.errors import CannotStart
from serving.http.listening import CannotListen, PortInUse, listening
from serving.http.quiet_server import Stop
from serving.tls.own_certificate import own_certificate
from serving.tls.pinning import pinned_context
from tests.registry.rows import usage_rows
from tests.router.commands.running import TIMEOUT_S, running_router
from tests.router.conftest import CHAT, RawCaller, RunningRouter, ScriptedNode, StartNode
from tests.router.dispatch.test_relay import HELLO, STREAM, in_band_error
from tests.router.dispatch.test_relay_failing import hello_and_hang, until

HOST = "127.0.0.1"


def test_options_win_over_the_environment_and_that_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLX_FLEET_ROUTER_PORT", "9001")
    monkeypatch.setenv("MLX_FLEET_ROUTER_LOG_REQUESTS", "yes")
    settings = read_settings({"port": 9002, "log_requests": None, "host": None})
    assert settings == Settings(home=tmp_path / "router", port=9002, log_requests=True)


def test_a_bind_that_others_can_reach_must_be_allowed(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="--allow-plain-http"):
        serve.run(Settings(tmp_path, host="0.0.0.0"))


def test_a_router_takes_more_callers_than_the_files_that_a_shell_allows(tmp_path: Path) -> None:
    """Each is there still when the last one has connected."""
    few_files = ("sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", sys.executable)
    arguments = ("-m", "router", "serve", "--home", str(tmp_path), "--port", "0")
    with (
        subprocess.Popen(
            [*few_files, *arguments, "--exit-on-stdin-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
        contextlib.ExitStack() as callers,
    ):
        assert process.stdout is not None and process.stdin is not None
        port = int(process.stdout.readline().rpartition(":")[2])
        place = ("127.0.0.1", port)
        here = [
            callers.enter_context(socket.create_connection(place, TIMEOUT_S)) for _ in range(300)
        ]
        for caller in here + here:
            caller.sendall(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
            assert caller.recv(4096).startswith(b"HTTP/1.1 200 OK")
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0


def test_a_port_in_use_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"Port {port} .* in use.*`router nodes` shows it"):
            serve.run(Settings(tmp_path, port=port))


def test_a_second_router_on_the_same_registry_cannot_start(router_place: RouterAccess) -> None:
    settings = Settings(router_place.home, port=0)
    with (
        listening(settings.host, settings.port) as listeners,
        pytest.raises(StartError, match="in use by process"),
    ):
        asyncio.run(serve.serve(settings, listeners, Stop()))


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(tmp_path / "file" / "home", port=0)
    with (
        listening(settings.host, settings.port) as listeners,
        pytest.raises(StartError, match="cannot"),
    ):
        asyncio.run(serve.serve(settings, listeners, Stop()))


def test_a_router_that_is_stopped_before_it_listens_ends(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "router", port=0)
    stop = Stop()
    stop.set()
    with listening(HOST, 0) as listeners:
        asyncio.run(asyncio.wait_for(serve.serve(settings, listeners, stop), 20))


def test_key_files_are_private(router_place: RouterAccess) -> None:
    for file in (router_place.admin_key_file, router_place.first_key_file):
        assert os.stat(file).st_mode & 0o777 == 0o600


async def whole_sending_and_admin(router: RunningRouter, node: ScriptedNode) -> list[RawCaller]:
    """Callers that wait for a whole answer, within their own body, and for the admin API."""
    body = json.dumps({"url": node.url, "token": "t"}).encode()
    admin_key = router.core.settings.current.admin_key_file.read_text().strip()
    return [
        await router.post({"model": "m"}),
        await router.send("POST", CHAT, b'{"mod', x_api_key=router.key, content_length="100"),
        await router.send(
            "POST",
            "/admin/nodes",
            body,
            x_api_key=admin_key,
            content_type="application/json",
            content_length=str(len(body)),
        ),
    ]


async def test_requests_that_outlive_the_grace_end_with_an_error_and_without_a_traceback(
    tmp_path: Path,
    start_node: StartNode,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(serve, "SHUTDOWN_S", 0.1)
    node = await start_node(hello_and_hang)
    settings, stop = Settings(tmp_path / "router", port=0), Stop()
    with listening(HOST, 0) as listeners:
        async with open_core(settings) as core:
            server = serve.Server(core, stop)
            serving = asyncio.create_task(server.serve(listeners))
            key = settings.first_key_file.read_text().strip()
            port = listeners[0].getsockname()[1]
            router = RunningRouter(core, port, key, server.server_state)
            await router.add(node)
            streaming = await router.post(STREAM)
            assert await streaming.head() == 200
            assert await streaming.chunk() == HELLO
            others = await whole_sending_and_admin(router, node)
            await until(lambda: len(node.requests) == 4 and len(server.server_state.tasks) == 4)
            stop.set()
            assert (await in_band_error(streaming))["code"] == "shutting_down"
            for caller in others:
                assert await caller.head() == 503
                assert (await caller.error())["code"] == "shutting_down"
            await asyncio.wait_for(serving, TIMEOUT_S)
            for caller in router.callers:
                caller.leave()
    assert [each for each in caplog.records if each.levelno >= logging.ERROR] == []
    registry = await open_migrated(settings.registry)
    async with registry.read() as session:
        reasons = [row.reason for row in await usage_rows(session)]
    await registry.close()
    assert reasons == ["cancelled", "cancelled"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tls_cert": Path("a.pem")}, "go together"),
        ({"tls_key": Path("a.pem")}, "go together"),
        (
            {"tls_cert": Path("a"), "tls_key": Path("a"), "allow_plain_http": True},
            "leave --allow-plain-http out",
        ),
        ({"tls_cert": Path("/none.pem"), "tls_key": Path("/none.pem")}, "cannot be read"),
    ],
)
def test_a_certificate_that_cannot_be_used_stops_the_start(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises((StartError, CannotStart), match=words):
        serve.run(Settings(tmp_path, host="0.0.0.0", **changes))


def test_a_router_with_a_certificate_speaks_tls_and_plain_http_with_its_machine(
    tmp_path: Path,
) -> None:
    file = tmp_path / "router.pem"
    pin = pinned_context(ssl.DER_cert_to_PEM_cert(own_certificate(file).der))
    settings = Settings(tmp_path / "home", port=0, tls_cert=file, tls_key=file)
    serve.check(replace(settings, host="0.0.0.0"))
    with running_router(settings) as place:
        port = place.url.rpartition(":")[2]
        for url in (f"https://127.0.0.1:{port}", f"http://127.0.0.1:{port}"):
            assert httpx.get(f"{url}/health", verify=pin).json() == {"status": "ok"}
