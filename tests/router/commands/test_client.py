import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from router.api.admin.alias_views import AliasRow
from router.commands.client import (
    AdminClient,
    CommandFailed,
    RouterAccess,
    Unreachable,
    find_router,
    read_rows,
)
from router.commands.connection import ConnectFailed, RouterRequest, RouterResponse, Send
from serving.setting import BadSetting
from tests.router.commands.conftest import sending


def refusing(status: int, text: str) -> Send:
    return sending(lambda _request: httpx.Response(status, json={"error": {"message": text}}))


def failure(place: RouterAccess, send: Send) -> str:
    with pytest.raises(CommandFailed) as caught:
        AdminClient(place, send).get("/nodes")
    return caught.value.message


def raising(error: Exception) -> Send:
    def send(_request: RouterRequest) -> RouterResponse:
        raise error

    return send


def test_the_router_of_this_machine_is_the_default(tmp_path: Path) -> None:
    place = find_router(None)
    assert place.url == "http://127.0.0.1:8800"
    assert place.home == tmp_path / "router"


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:9001"), ("::1", "http://[::1]:9001")]
)
def test_the_router_of_this_machine_is_where_its_settings_say(
    monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    monkeypatch.setenv("MLX_FLEET_ROUTER_HOST", host)
    monkeypatch.setenv("MLX_FLEET_ROUTER_PORT", "9001")
    assert find_router(None).url == url
    assert find_router("mini:8800").url == "http://mini:8800"


@pytest.mark.parametrize("given", ["mini:8800", "http://mini:8800/", "http://mini:8800/v1"])
def test_an_address_may_be_given_as_people_write_it(given: str) -> None:
    assert find_router(given).url == "http://mini:8800"


@pytest.mark.parametrize(
    "given", ["ftp://mini", "mini:99999", "mini:x", "http://[::1", "m\u00fc:1"]
)
def test_an_address_that_is_none_is_refused(given: str) -> None:
    with pytest.raises(BadSetting, match="is not an address; one looks like http"):
        find_router(given)


@pytest.mark.parametrize("key", ["\u00fcber", "two\nlines"])
def test_a_key_that_is_none_is_not_repeated(key: str) -> None:
    text = failure(RouterAccess(key=key), refusing(200, "never sent"))
    assert text == "The key has characters that no key of a router has."


def test_the_key_is_read_from_the_environment_or_the_homes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "router"
    home.mkdir()
    (home / "admin.key").write_text("a\n")
    (home / "first.key").write_text("f\n")
    place = find_router(None)
    assert (place.admin_key(), place.inference_key()) == ("a", "f")
    monkeypatch.setenv("MLX_FLEET_KEY", "mine")
    place = find_router(None)
    assert (place.admin_key(), place.inference_key()) == ("mine", "mine")


def test_a_key_file_goes_to_no_other_machine(tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text("a")
    place = RouterAccess("http://mini:8800", tmp_path)
    assert place.admin_key() == ""
    assert "MLX_FLEET_KEY" in failure(place, refusing(401, "Wrong."))


def test_a_router_that_is_not_running_is_a_sentence_with_the_next_step(tmp_path: Path) -> None:
    text = failure(RouterAccess(home=tmp_path), raising(ConnectFailed("refused")))
    assert "start it with `router serve`" in text
    text = failure(RouterAccess("http://mini:1", tmp_path), raising(ConnectFailed()))
    assert "check that it runs there" in text


def test_a_silent_or_broken_router_is_a_sentence() -> None:
    assert "in time" in failure(RouterAccess(key="k"), raising(TimeoutError()))
    assert "broke" in failure(RouterAccess(key="k"), raising(ConnectionResetError("reset")))


def test_a_refused_key_is_reported_with_its_source(tmp_path: Path) -> None:
    place = RouterAccess(home=tmp_path)
    assert f"no key in {tmp_path / 'admin.key'}" in failure(place, refusing(401, "Wrong."))
    (tmp_path / "admin.key").write_text("x")
    assert f"refused the key in {tmp_path / 'admin.key'}" in failure(place, refusing(401, "W."))
    assert "MLX_FLEET_KEY" in failure(RouterAccess(key="x"), refusing(401, "Wrong."))


def test_a_key_that_a_starting_router_has_just_written_is_found(tmp_path: Path) -> None:
    place = RouterAccess(home=tmp_path)
    place.admin_key_file.parent.mkdir(parents=True, exist_ok=True)

    def serve(request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") == "Bearer late":
            return httpx.Response(200, json=[])
        place.admin_key_file.write_text("late\n")
        return httpx.Response(401, json={"error": {"message": "No."}})

    assert AdminClient(place, sending(serve)).get("/nodes") == []


def test_other_refusals_are_the_routers_own_sentence() -> None:
    assert failure(RouterAccess(key="k"), refusing(404, "There is no node.")) == "There is no node."


def test_what_is_no_router_is_recognized() -> None:
    html = sending(lambda _request: httpx.Response(200, text="<html>"))
    assert "does not respond like a router" in failure(RouterAccess(key="k"), html)
    html = sending(lambda _request: httpx.Response(502, text="<html>"))
    assert "responded with status 502" in failure(RouterAccess(key="k"), html)


def test_rows_of_another_version_are_a_sentence(
    played: Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient],
) -> None:
    client = played(lambda _request: httpx.Response(200, json=[{"x": 1}]))
    with pytest.raises(CommandFailed, match="same version"):
        read_rows(AliasRow, client.get("/aliases"))


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (b"", "broke (Remote end closed connection without response)"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "broke (its response is not HTTP)"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n[]",
            "broke (its response ended early)",
        ),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]", ""),
        (None, "does not respond in time."),
    ],
)
def test_whatever_a_server_sends_is_an_answer_or_a_sentence(
    response: bytes | None, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ExitStack() as connections:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        client = AdminClient(RouterAccess(url, key="k"))

        def answer() -> None:
            connection, _ = server.accept()
            connections.enter_context(connection)
            received = b""
            while b"\r\n\r\n{}" not in received:
                received += connection.recv(1000)
            assert b"POST /admin/nodes HTTP/1.1" in received and b"Bearer k" in received
            if response is not None:
                connection.sendall(response)
                connection.close()

        with ThreadPoolExecutor() as threads:
            served = threads.submit(answer)
            if not words:
                assert client.post("/nodes", {}) == []
            else:
                with pytest.raises(Unreachable) as failed:
                    client.post("/nodes", {}, 0.2 if response is None else 20)
                assert words in failed.value.message
            served.result()
