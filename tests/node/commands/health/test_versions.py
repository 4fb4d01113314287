"""Installed versions against those that this product is written for."""

import tomllib
from pathlib import Path

import pytest

from node.commands.checks import Level
from node.commands.health.versions import MLX_LM, TESTED_MLX, check_versions, installed
from tests.node.kernels import PlayedKernel

ROOT = Path(__file__).parents[4]
MAC = PlayedKernel({})
GOOD = {"mlx": TESTED_MLX, "mlx-metal": TESTED_MLX, "mlx-lm": MLX_LM}


def test_the_versions_are_those_that_are_installed_here() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"mlx-lm=={MLX_LM}" in project["optional-dependencies"]["node"]
    assert f"mlx=={TESTED_MLX} ;" in (ROOT / "constraints.txt").read_text()
    assert check_versions(lambda _: None, None).level is Level.OK
    assert installed("no-such-package") is None


@pytest.mark.parametrize(
    ("changes", "macos", "level", "words"),
    [
        ({}, "15.6.1", Level.OK, ""),
        ({}, None, Level.OK, ""),
        ({}, "who knows", Level.OK, ""),
        ({}, "13.7", Level.FAIL, "macOS 14 or newer"),
        ({"mlx": "0.32.1", "mlx-metal": "0.32.1"}, "15.6", Level.FAIL, "wrong results"),
        ({"mlx": "0.31.9", "mlx-metal": "0.31.9"}, "15.6", Level.FAIL, "too old"),
        ({"mlx": "0.33.0", "mlx-metal": "0.33.0"}, "15.6", Level.WARN, "has been tested with"),
        ({"mlx-metal": "0.32.3"}, "15.6", Level.FAIL, "does not belong to mlx"),
        ({"mlx-lm": "0.33.0"}, "15.6", Level.FAIL, f"written for mlx-lm {MLX_LM}"),
        ({"mlx": "dev", "mlx-metal": "dev"}, "15.6", Level.FAIL, "too old"),
        ({"mlx": None, "mlx-metal": None, "mlx-lm": None}, "15.6", Level.OK, ""),
    ],
)
def test_versions_that_do_not_work_are_named_with_what_to_do(
    changes: dict[str, str | None], macos: str | None, level: Level, words: str
) -> None:
    versions: dict[str, str | None] = {**GOOD, **changes}
    check = check_versions(lambda _: macos, MAC, versions.get)
    assert check.level is level
    assert words in check.advice
    assert f"macOS {macos or 'unknown'}" in check.sentence
