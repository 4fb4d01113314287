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


def url_at(host: str, port: int, *, tls: bool = False) -> str:
    """The address of a server."""
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def default_home(product: str, environ: Mapping[str, str]) -> Path:
    """`$MLX_FLEET_HOME/<product>`, or `~/.mlx-fleet/<product>`."""
    return Path(environ.get(HOME_VARIABLE) or Path.home() / ".mlx-fleet") / product
