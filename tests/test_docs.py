"""Every command, option, setting, error code and path stands in the documentation."""

import importlib
import pkgutil
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer

import node.cli
import node.errors
import node.settings
import router.cli
import router.errors
import router.settings

DOCS = Path(__file__).parent.parent / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text()


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every verb of a command line. `Any`: the click that typer brings has a private name."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from commands(each, f"{path} {name}")


ALL_COMMANDS = [
    *commands(typer.main.get_command(router.cli.app), "router"),
    *commands(typer.main.get_command(node.cli.app), "node-agent"),
]


@pytest.mark.parametrize(("path", "command"), ALL_COMMANDS, ids=[path for path, _ in ALL_COMMANDS])
def test_every_command_and_option_is_documented(path: str, command: Any) -> None:
    text = page("cli.md")
    start = text.find(f"### `{path}")
    assert start >= 0, f"docs/cli.md has no section for {path}"
    section = text[start : text.find("\n### ", start + 1)]
    options = [
        option
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option != "--help"
    ]
    assert [option for option in options if option not in section] == []


def test_the_command_lines_have_verbs() -> None:
    assert len(ALL_COMMANDS) > 20


@pytest.mark.parametrize(
    ("prefix", "settings"),
    [
        ("MLX_FLEET_NODE_", node.settings.Settings),
        ("MLX_FLEET_ROUTER_", router.settings.Settings),
    ],
)
def test_every_setting_is_documented_with_its_variable(prefix: str, settings: Any) -> None:
    variables = [f"`{prefix}{field.name.upper()}`" for field in fields(settings)]
    text = page("settings.md")
    assert [variable for variable in variables if variable not in text] == []


def tree(base: Any) -> Iterator[Any]:
    yield base
    for child in base.__subclasses__():
        yield from tree(child)


def import_everything(package: Any) -> None:
    """All modules but those of engine processes, so that every subclass is known."""
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.startswith(("node.engine", "node.worker")):
            importlib.import_module(module.name)


@pytest.mark.parametrize(
    ("package", "base"),
    [(node, node.errors.NodeError), (router, router.errors.RouterError)],
    ids=["node", "router"],
)
def test_every_error_code_is_documented_with_its_status(package: Any, base: Any) -> None:
    import_everything(package)
    text = page("errors.md")
    missing = [
        each.__name__
        for each in tree(base)
        if not each.__name__.startswith("_") and f"| {each.status} | `{each.code}` |" not in text
    ]
    assert missing == []


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/v1/node/status",
        "/health",
        "/ready",
        "/fleet/status",
        "/fleet/events",
        "/fleet/load",
        "/fleet/unload",
        "/fleet/warm",
        "/fleet/cache/clear",
        "/admin/nodes",
        "/admin/models",
        "/admin/aliases",
        "/admin/keys",
        "/admin/usage",
        "/admin/audit",
        "/scripted",
    ],
)
def test_every_path_is_documented(path: str) -> None:
    assert f"`{path}" in page("api.md") or f" {path}" in page("api.md")


def test_the_changelog_tells_of_this_version() -> None:
    project = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]
    assert f"## [{project['version']}]" in (DOCS.parent / "CHANGELOG.md").read_text()
