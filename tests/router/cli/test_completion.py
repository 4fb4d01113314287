"""Completion by shells, as their scripts call it."""

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from router.cli.main import app
from router.commands import client
from router.commands.connection import ConnectFailed, RouterRequest, RouterResponse

RESPONSES = {
    "/v1/models": {"data": [{"id": "org/qwen"}, {"id": "org/gemma"}, {"id": "fast"}]},
    "/admin/nodes": [{"name": "mini"}, {"name": "studio"}],
    "/admin/keys": [{"name": "alice"}],
    "/admin/teams": [{"name": "lab"}],
    "/admin/aliases": [{"name": "fast"}],
}
Send = Callable[[RouterRequest], RouterResponse]


def completed(line: str, monkeypatch: pytest.MonkeyPatch, send: Send) -> list[str]:
    """The words that bash shows after the line."""
    monkeypatch.setattr(client, "send", send)
    words = line.split(" ")
    env = {
        "_ROUTER_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        **dict.fromkeys(("MLX_FLEET_ROUTER_URL", "MLX_FLEET_ROUTER_PORT", "MLX_FLEET_KEY")),
    }
    result = CliRunner().invoke(app, [], env=env, prog_name="router")
    assert result.exit_code == 0, result.output
    return result.output.split()


def respond(request: RouterRequest) -> RouterResponse:
    assert request.timeout_s == request.connect_timeout_s == 1.0
    path = request.url.removeprefix("http://127.0.0.1:8800")
    return RouterResponse(request.url, 200, json.dumps(RESPONSES[path]).encode())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("router load ", ["org/qwen", "org/gemma", "fast"]),
        ("router load org/q", ["org/qwen"]),
        ("router load org/qwen --node st", ["studio"]),
        ("router chat f", ["fast"]),
        ("router pin org/g", ["org/gemma"]),
        ("router drain ", ["mini", "studio"]),
        ("router remove-node m", ["mini"]),
        ("router keys revoke ", ["alice"]),
        ("router keys create ", []),
        ("router teams delete ", ["lab"]),
        ("router alias rm ", ["fast"]),
        ("router stat", ["status"]),
    ],
)
def test_names_of_the_running_router_are_completed(
    line: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed(line, monkeypatch, respond) == words


def _gone(_request: RouterRequest) -> RouterResponse:
    raise ConnectFailed("refused")


def _slow(_request: RouterRequest) -> RouterResponse:
    raise TimeoutError


def _refusing(request: RouterRequest) -> RouterResponse:
    return RouterResponse(request.url, 401, b'{"error": {"message": "no key"}}')


@pytest.mark.parametrize("send", [_gone, _slow, _refusing])
def test_without_a_router_nothing_is_completed_or_said(
    send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert completed("router load ", monkeypatch, send) == []


def test_the_router_of_the_command_line_is_the_one_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def send(request: RouterRequest) -> RouterResponse:
        seen.append(request.url)
        return RouterResponse(request.url, 200, b"[]")

    completed("router drain --router http://other:9 ", monkeypatch, send)
    assert seen == ["http://other:9/admin/nodes"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {"_ROUTER_COMPLETE": f"source_{shell}"}
    result = CliRunner().invoke(app, [], env=env, prog_name="router")
    assert "_ROUTER_COMPLETE" in result.output
