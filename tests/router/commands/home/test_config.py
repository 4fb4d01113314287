"""`router config` and `router reload`."""

import json
from collections.abc import Callable

import httpx
import pytest

from router.commands.client import AdminClient, RouterAccess
from router.commands.home import config
from router.settings import read_settings, sources


def test_a_template_is_made_and_is_without_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    before = read_settings({})
    config.init(sources({}), force=False)
    assert config.check(sources({}))
    assert read_settings({}) == before
    capsys.readouterr()
    assert config.show(sources({"port": 9}), as_json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["port"] == {"name": "port", "value": 9, "source": "--port"}
    assert rows["stall"]["source"] == "default"


def test_settings_that_a_start_would_refuse_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not config.check(sources({"host": "0.0.0.0"}))
    assert "--allow-plain-http" in capsys.readouterr().err


def test_a_router_without_changes_says_so(
    router_place: RouterAccess, capsys: pytest.CaptureFixture[str]
) -> None:
    config.reload(AdminClient(router_place), as_json=False)
    assert capsys.readouterr().out == "No setting has changed.\n"


Played = Callable[[Callable[[httpx.Request], httpx.Response]], AdminClient]


def test_changes_are_told_with_their_values(
    played: Played, capsys: pytest.CaptureFixture[str]
) -> None:
    change = {"option": "--stall", "before": "150s", "after": "1m"}
    client = played(
        lambda _request: httpx.Response(200, json={"applied": [change], "needs_restart": [change]})
    )
    config.reload(client, as_json=False)
    told = capsys.readouterr().out
    assert told.count("  --stall: 150s -> 1m\n") == 2 and "only a restart" in told
    config.reload(client, as_json=True)
    assert json.loads(capsys.readouterr().out)["applied"] == [change]
