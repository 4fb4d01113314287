"""The clients' packages, of the versions in `package.json`, installed once into `.cache`.

Without a lock: a package is one program for each system, and depends on nothing else. `npm ci`
would want to know those for other systems too, which not every registry has.
"""

import re
import shutil
import subprocess
from pathlib import Path

from tests.clients.real.namespace import ROOT

_SOURCE = Path(__file__).parent
FOLDER = ROOT / ".cache" / "clients" / "agents"
_PACKAGES = "package.json"
_SCRIPTS = {
    "@anthropic-ai/claude-code": "install.cjs",
    "opencode-ai": "postinstall.mjs",
}
"""The scripts that install a package's program."""
_LEAST_NODE = 20
_INSTALL_TIMEOUT_S = 600.0


class Missing(Exception):
    """Raised if a package or program that the clients need is not installed."""


def installed() -> Path:
    """The folder with the clients' commands. Raises `Missing` with a message, and
    `CalledProcessError` where they cannot be installed."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Missing("Node.js is not installed; the clients need it.")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)\.", version)
    if found is None or int(found[1]) < _LEAST_NODE:
        raise Missing(f"Node.js {version.strip()} is too old; the clients need {_LEAST_NODE}.")
    if not _is_installed():
        _install(node, npm)
    return FOLDER / "node_modules" / ".bin"


def _is_installed() -> bool:
    named = FOLDER / _PACKAGES
    return named.is_file() and named.read_bytes() == (_SOURCE / _PACKAGES).read_bytes()


def _install(node: str, npm: str) -> None:
    staging = FOLDER.with_name("agents-new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    shutil.copy(_SOURCE / _PACKAGES, staging)
    _run(
        staging, npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"
    )
    for package, script in _SCRIPTS.items():
        _run(staging / "node_modules" / package, node, script)
    shutil.rmtree(FOLDER, ignore_errors=True)
    staging.rename(FOLDER)


def _run(folder: Path, *command: str) -> None:
    subprocess.run(command, cwd=folder, check=True, timeout=_INSTALL_TIMEOUT_S)
