from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from router.api.alias_views import AliasRow
from router.commands.client import AdminClient, CommandFailed, Place, find_place, read_rows


def refusing(status: int, text: str) -> httpx.MockTransport:
    return httpx.MockTransport(
        lambda _request: httpx.Response(status, json={"error": {"message": text}})
    )


def failure(place: Place, transport: httpx.BaseTransport) -> str:
    with AdminClient(place, transport) as client, pytest.raises(CommandFailed) as caught:
        client.get("/nodes")
    return caught.value.message


def raising(error: Exception) -> httpx.MockTransport:
    def handler(_request: httpx.Request) -> httpx.Response:
        raise error

    return httpx.MockTransport(handler)


def test_the_router_of_this_machine_is_the_default(tmp_path: Path) -> None:
    place = find_place(None)
    assert place.url == "http://127.0.0.1:8800"
    assert place.home == tmp_path / "router"


@pytest.mark.parametrize("given", ["mini:8800", "http://mini:8800/", "http://mini:8800/v1"])
def test_an_address_may_be_given_as_people_write_it(given: str) -> None:
    assert find_place(given).url == "http://mini:8800"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(CommandFailed, match="not a router's address"):
        find_place("ftp://mini")


def test_the_key_comes_from_the_environment_or_the_homes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "router"
    home.mkdir()
    (home / "admin.key").write_text("a\n")
    (home / "first.key").write_text("f\n")
    place = find_place(None)
    assert (place.admin_key(), place.inference_key()) == ("a", "f")
    monkeypatch.setenv("MLX_FLEET_KEY", "mine")
    place = find_place(None)
    assert (place.admin_key(), place.inference_key()) == ("mine", "mine")


def test_a_key_file_goes_to_no_other_machine(tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text("a")
    place = Place("http://mini:8800", tmp_path)
    assert place.admin_key() == ""
    assert "MLX_FLEET_KEY" in failure(place, refusing(401, "Wrong."))


def test_a_router_that_is_not_running_is_a_sentence_with_the_next_step(tmp_path: Path) -> None:
    text = failure(Place(home=tmp_path), raising(httpx.ConnectError("refused")))
    assert "start it with `router serve`" in text
    text = failure(Place("http://mini:1", tmp_path), raising(httpx.ConnectTimeout("")))
    assert "check that it runs there" in text


def test_a_silent_or_broken_router_is_a_sentence() -> None:
    assert "in time" in failure(Place(key="k"), raising(httpx.ReadTimeout("")))
    assert "broke" in failure(Place(key="k"), raising(httpx.ReadError("reset")))


def test_a_refused_key_says_where_it_came_from(tmp_path: Path) -> None:
    place = Place(home=tmp_path)
    assert f"no key in {tmp_path / 'admin.key'}" in failure(place, refusing(401, "Wrong."))
    (tmp_path / "admin.key").write_text("x")
    assert f"refused the key in {tmp_path / 'admin.key'}" in failure(place, refusing(401, "W."))
    assert "MLX_FLEET_KEY" in failure(Place(key="x"), refusing(401, "Wrong."))


def test_a_key_that_a_starting_router_has_just_written_is_found(tmp_path: Path) -> None:
    place = Place(home=tmp_path)
    place.admin_key_file.parent.mkdir(parents=True, exist_ok=True)

    def serve(request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") == "Bearer late":
            return httpx.Response(200, json=[])
        place.admin_key_file.write_text("late\n")
        return httpx.Response(401, json={"error": {"message": "No."}})

    with AdminClient(place, httpx.MockTransport(serve)) as client:
        assert client.get("/nodes") == []


def test_other_refusals_are_the_routers_own_sentence() -> None:
    assert failure(Place(key="k"), refusing(404, "There is no node.")) == "There is no node."


def test_what_is_no_router_is_told_apart() -> None:
    html = httpx.MockTransport(lambda _request: httpx.Response(200, text="<html>"))
    assert "does not answer like a router" in failure(Place(key="k"), html)
    html = httpx.MockTransport(lambda _request: httpx.Response(502, text="<html>"))
    assert "answered 502" in failure(Place(key="k"), html)


def test_rows_of_another_version_are_a_sentence(
    played: Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient],
) -> None:
    with (
        played(lambda _request: httpx.Response(200, json=[{"x": 1}])) as client,
        pytest.raises(CommandFailed, match="same version"),
    ):
        read_rows(AliasRow, client.get("/aliases"))
