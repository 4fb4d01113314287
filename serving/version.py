"""The version of mlx-fleet."""

import importlib.metadata


def own_version() -> str:
    """The installed version; "0" if it runs from a folder that is not installed."""
    try:
        return importlib.metadata.version("mlx-fleet")
    except importlib.metadata.PackageNotFoundError:
        return "0"
