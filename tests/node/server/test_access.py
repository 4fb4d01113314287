"""Who may send requests to an agent."""

from pathlib import Path
from typing import Any

import pytest

from node.errors import LocalOnly, NotARouter, Unauthorized
from node.server.access import LOCAL, Access
from node.server.pairings import Pairings


def request_from(address: str | None) -> dict[str, Any]:
    client = None if address is None else (address, 4000)
    return {"type": "http", "client": client, "extensions": {}}


@pytest.fixture
def routers(tmp_path: Path) -> Pairings:
    return Pairings(tmp_path / "pairings.json")


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_agent_s_own_token_is_for_its_machine(routers: Pairings, address: str) -> None:
    assert Access("secret", routers).check(request_from(address), b"secret") == LOCAL


@pytest.mark.parametrize("address", ["192.168.1.7", "fe80::1", None])
def test_from_another_machine_that_token_is_refused(routers: Pairings, address: str | None) -> None:
    with pytest.raises(Unauthorized, match="node-agent pair"):
        Access("secret", routers).check(request_from(address), b"secret")


@pytest.mark.parametrize("shown", [b"", b"secre", b"secret2", "secrét".encode(), b"\xff" * 5000])
def test_any_other_token_is_refused(routers: Pairings, shown: bytes) -> None:
    with pytest.raises(Unauthorized, match="missing or wrong"):
        Access("secret", routers).check(request_from("127.0.0.1"), shown)


async def test_a_paired_router_comes_from_anywhere_until_it_is_unpaired(
    routers: Pairings,
) -> None:
    access = Access("secret", routers)
    secret = (await routers.add("r1", "desk")).encode()
    far = request_from("192.168.1.9")
    assert access.check(far, secret) == access.check_router(far, secret) == "r1"
    assert access.still_admits("r1")
    with pytest.raises(LocalOnly):
        access.check_local(far, secret)
    await routers.remove("r1")
    assert not access.still_admits("r1")
    with pytest.raises(Unauthorized):
        access.check(far, secret)


def test_commands_of_the_machine_are_no_router(routers: Pairings) -> None:
    access, near = Access("secret", routers), request_from("127.0.0.1")
    access.check_local(near, b"secret")
    assert access.still_admits(LOCAL)
    with pytest.raises(NotARouter):
        access.check_router(near, b"secret")
