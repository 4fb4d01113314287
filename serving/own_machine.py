"""Names of this machine, and the folder of a product's files."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path

HOME_VARIABLE = "MLX_FLEET_HOME"


def is_loopback(host: str) -> bool:
    """True if a host's name or address, perhaps in brackets, can only mean this machine."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def url_at(host: str, port: int) -> str:
    """The address of a server without TLS."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def default_home(product: str, environ: Mapping[str, str]) -> Path:
    """`$MLX_FLEET_HOME/<product>`, or `~/.mlx-fleet/<product>`."""
    return Path(environ.get(HOME_VARIABLE) or Path.home() / ".mlx-fleet") / product
