"""`router alias`, `keys set-budget` and `add-node --paid`: what they take and print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from router.commands.aliases import read_targets
from router.commands.client import CommandFailed
from tests.router.cli.test_main import Cli
from tests.router.commands.running import running_router


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with running_router(tmp_path_factory.mktemp("router")) as place:
        yield Cli(place)


@pytest.mark.parametrize(
    ("targets", "defaults", "expected"),
    [
        (["m"], [], [{}]),
        (["m"], ["temperature=0.2"], [{"temperature": 0.2}]),
        (["a", "b"], ["seed=1", "b:stop=END"], [{"seed": 1}, {"seed": 1, "stop": "END"}]),
        (["llama3:8b", "llama3"], ["llama3:8b:seed=1"], [{"seed": 1}, {}]),
        (["m"], ["reasoning_effort=high"], [{"reasoning_effort": "high"}]),
        (["m"], ['stop=["a:b=c"]'], [{"stop": ["a:b=c"]}]),
        (
            ["m"],
            ["chat_template_kwargs.enable_thinking=false", "chat_template_kwargs.a=b"],
            [{"chat_template_kwargs": {"enable_thinking": False, "a": "b"}}],
        ),
    ],
)
def test_defaults_are_of_all_targets_or_of_one(
    targets: list[str], defaults: list[str], expected: list[dict[str, Any]]
) -> None:
    found = read_targets(targets, defaults)
    assert [target["defaults"] for target in found] == expected
    assert [target["model"] for target in found] == targets


@pytest.mark.parametrize("text", ["temperature", "=1", "m:=1", ""])
def test_a_default_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="KEY=JSON"):
        read_targets(["m"], [text])


def test_an_alias_is_confirmed_listed_and_shown(cli: Cli) -> None:
    printed = cli.must("alias", "set", "fast", "tiny", "--force")
    assert "fast now means tiny." in printed and "No node has reported tiny yet." in printed
    arguments = ("--selector", "spillover", "--spill-at", "4", "--default", "tiny:seed=7")
    printed = cli.must("alias", "set", "claude-*", "tiny", "big", "--force", *arguments)
    assert "the first with fewer than 4 requests in flight of tiny, big" in printed
    listed = cli.must("alias", "list")
    assert "claude-*" in listed and "spillover at 4" in listed and "no node has it" in listed
    shown = cli.must("alias", "show", "claude-*")
    assert "seed=7" in shown and "big" in shown
    row = json.loads(cli.must("alias", "show", "claude-*", "--json"))
    assert row["targets"][0]["defaults"] == {"seed": 7}
    assert (row["selector"], row["spill_at"]) == ("spillover", 4)
    made = json.loads(cli.must("alias", "set", "fast", "big", "--force", "--json"))
    assert made["targets"][0]["model"] == "big"
    assert "Removed the alias claude-* of tiny, big." in cli.must("alias", "rm", "claude-*")


def test_what_an_alias_cannot_be_is_one_line(cli: Cli) -> None:
    assert "needs spill_at (--spill-at N)" in cli.fails(
        "alias", "set", "x", "a", "--selector", "spillover"
    )
    assert "selector" in cli.fails("alias", "set", "x", "a", "--selector", "best")
    refused = cli.fails("alias", "set", "x", "a", "--force", "--default", "temperature=9")
    assert "targets.0.defaults.temperature" in refused
    refused = cli.fails("alias", "set", "x", "a", "--force", "--default", "messages=[]")
    assert "messages cannot be a default; these can: temperature, top_p" in refused
    assert "no alias 'gone'" in cli.fails("alias", "show", "gone")


def test_a_key_is_given_a_budget_and_loses_it(cli: Cli) -> None:
    printed = cli.must("keys", "set-budget", "first", "20")
    assert "for 20 a month; 0.00 of this month's is used" in printed
    assert "0.00 of 20" in cli.must("keys", "list")
    assert "may not use paid servers" in cli.must("keys", "set-budget", "first", "none")
    (row,) = [r for r in json.loads(cli.must("keys", "list", "--json")) if r["name"] == "first"]
    assert row["paid_budget"] is None
    assert "a number such as 20" in cli.fails("keys", "set-budget", "first", "much")
    assert "a number such as 20" in cli.fails("keys", "set-budget", "first", "nan")
    assert "no key 'gone'" in cli.fails("keys", "set-budget", "gone", "1")


def test_prices_and_paid_go_together(cli: Cli) -> None:
    node = ("add-node", "http://127.0.0.1:9", "--token", "t")
    assert "add --paid" in cli.fails(*node, "--price-input", "1")
    assert "needs --price-input and" in cli.fails(*node, "--paid", "--price-input", "1")
    prices = ("--paid", "--price-input", "1", "--price-output", "2")
    assert "Only a server of kind openai" in cli.fails(*node, *prices)
    assert "cannot be reached" in cli.fails(*node, *prices, "--kind", "openai")
