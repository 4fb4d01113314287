"""The clients' packages, of the versions in `package-lock.json`, installed once into `.cache`."""

import re
import shutil
import subprocess
from pathlib import Path

from tests.clients.real.namespace import ROOT

_SOURCE = Path(__file__).parent
FOLDER = ROOT / ".cache" / "clients" / "agents"
_PACKAGES = ("package.json", "package-lock.json")
_SCRIPTS = {
    "@anthropic-ai/claude-code": "install.cjs",
    "opencode-ai": "postinstall.mjs",
}
"""What puts a package's program in its place."""
_LEAST_NODE = 20
_INSTALL_TIMEOUT_S = 600.0


class Missing(Exception):
    """What the clients need is not here."""


def installed() -> Path:
    """The folder with the clients' commands. Raises `Missing` with a sentence."""
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
    """The lock is put there last, so it is there only beside all that it names."""
    lock = FOLDER / "package-lock.json"
    return lock.is_file() and lock.read_bytes() == (_SOURCE / "package-lock.json").read_bytes()


def _install(node: str, npm: str) -> None:
    staging = FOLDER.with_name("agents-new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for name in _PACKAGES:
        shutil.copy(_SOURCE / name, staging)
    _run(staging, npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
    for package, script in _SCRIPTS.items():
        _run(staging / "node_modules" / package, node, script)
    shutil.rmtree(FOLDER, ignore_errors=True)
    staging.rename(FOLDER)


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S
    )
    if done.returncode != 0:
        told = done.stderr.strip()[-300:]
        raise Missing(f"The clients could not be installed ({' '.join(command[:2])}): {told}")
