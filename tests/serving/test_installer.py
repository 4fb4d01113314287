"""Tests for serving.installer."""

from pathlib import PurePosixPath

import pytest

from serving.installer import UPGRADES, installer_of, own_installer

EDITABLE = '{"dir_info": {"editable": true}, "url": "file:///home/ann/mlx-fleet"}'
FOLDER = '{"dir_info": {}, "url": "file:///home/ann/mlx-fleet"}'
WHEEL = '{"archive_info": {}, "url": "file:///tmp/mlx_fleet-0.1.0-py3-none-any.whl"}'


@pytest.mark.parametrize(
    ("prefix", "installer", "direct_url", "tool"),
    [
        ("/home/ann/.venvs/mlx-fleet", "pip\n", None, "pip"),
        ("/home/ann/.venvs/mlx-fleet", "pip\n", WHEEL, "pip"),
        ("/home/ann/.venvs/mlx-fleet", "pip", FOLDER, "clone"),
        ("/home/ann/mlx-fleet/.venv", "uv", EDITABLE, "clone"),
        ("/home/ann/.venv", "uv", None, "uv"),
        ("/home/ann/.local/share/uv/tools/mlx-fleet", "uv", None, "uv tool"),
        ("/home/ann/.local/pipx/venvs/mlx-fleet", "pip", None, "pipx"),
        ("/opt/homebrew/Cellar/mlx-fleet/0.1.0/libexec", "pip", None, "homebrew"),
        ("/usr", None, None, "pip"),
    ],
)
def test_the_tool_is_recognized_by_folder_and_files(
    prefix: str, installer: str | None, direct_url: str | None, tool: str
) -> None:
    assert installer_of(PurePosixPath(prefix), installer, direct_url) == tool
    assert tool in UPGRADES


def test_these_tests_run_from_a_clone() -> None:
    assert own_installer() == "clone"
