"""Routers that commands connect to: a real one, or a fake one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from router.commands.client import AdminClient, RouterAccess
from router.commands.connection import RouterRequest, RouterResponse, Send
from tests.router.commands.running import running_router


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the variables or the home of the user who runs it."""
    names = ("KEY", "ROUTER_HOME", "ROUTER_HOST", "ROUTER_PORT", "ROUTER_URL")
    for name in (*names, "NODE_HOME", "NODE_PORT", "NODE_TOKEN"):
        monkeypatch.delenv(f"MLX_FLEET_{name}", raising=False)
    monkeypatch.setenv("MLX_FLEET_HOME", str(tmp_path))


@pytest.fixture
def router_place(tmp_path: Path) -> Iterator[RouterAccess]:
    with running_router(tmp_path / "router") as place:
        yield place


Handler = Callable[[httpx.Request], httpx.Response]


def sending(handler: Handler) -> Send:
    """To a router that a function plays."""

    def send(sent: RouterRequest) -> RouterResponse:
        request = httpx.Request(
            sent.method, sent.url, headers=dict(sent.headers), content=sent.body
        )
        response = handler(request)
        return RouterResponse(sent.url, response.status_code, response.content)

    return send


@pytest.fixture
def played() -> Callable[[Handler], AdminClient]:
    """A client of a router that a function plays."""
    return lambda handler: AdminClient(RouterAccess(key="k"), sending(handler))
