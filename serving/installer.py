"""The tool by which mlx-fleet is installed here, and the command by which each tool upgrades it."""

import importlib.metadata
import json
import sys
from functools import cache
from pathlib import PurePath

PIP = "pip"
CLONE = "clone"
"""By pip from a folder with the sources."""
UV = "uv"
UV_TOOL = "uv tool"
PIPX = "pipx"
HOMEBREW = "homebrew"
UPGRADES = {
    CLONE: "git pull && pip install -c constraints.txt '.[node]'",
    PIP: "pip install --upgrade 'mlx-fleet[node]'",
    UV: "uv pip install --upgrade 'mlx-fleet[node]'",
    UV_TOOL: "uv tool upgrade mlx-fleet",
    PIPX: "pipx upgrade mlx-fleet",
    HOMEBREW: "brew upgrade mlx-fleet",
}
"""The shell command of each tool; of `CLONE` in the folder of the sources."""
_FOLDERS = ((HOMEBREW, ("Cellar",)), (UV_TOOL, ("uv", "tools")), (PIPX, ("pipx", "venvs")))
"""Folders on the way to an environment that only one tool makes."""


@cache
def own_installer() -> str:
    """The tool for this process; empty if it runs from a folder that is not installed."""
    try:
        found = importlib.metadata.distribution("mlx-fleet")
    except importlib.metadata.PackageNotFoundError:
        return ""
    return installer_of(
        PurePath(sys.prefix), found.read_text("INSTALLER"), found.read_text("direct_url.json")
    )


def installer_of(prefix: PurePath, installer: str | None, direct_url: str | None) -> str:
    """The tool for an environment at `prefix`, with the two files of the installed package that
    have these names."""
    for tool, folders in _FOLDERS:
        if _passes(prefix, folders):
            return tool
    if direct_url and "dir_info" in json.loads(direct_url):
        return CLONE
    return UV if (installer or "").strip() == UV else PIP


def _passes(path: PurePath, folders: tuple[str, ...]) -> bool:
    count = len(folders)
    return any(path.parts[at : at + count] == folders for at in range(len(path.parts)))
