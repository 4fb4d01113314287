"""Programs of Node.js that tests run, with their packages from npm, which are installed once."""

import asyncio
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

_CACHE = Path(__file__).parents[2] / ".cache" / "clients"
_PACKAGES = ("package.json", "package-lock.json")
_LEAST_NODE = 20
_INSTALL_TIMEOUT_S = 90.0
_RUN_TIMEOUT_S = 60.0


def installed(source: Path, name: str) -> Path:
    """Returns the program `loop.mjs` of the folder `source` beside its packages, whose `name` is
    for people. Skips the test without Node.js, or if npm cannot install them."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip(f"Node.js is not installed; {name} needs it.")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)\.", version)
    if found is None or int(found[1]) < _LEAST_NODE:
        pytest.skip(f"Node.js {version.strip()} is too old; {name} needs {_LEAST_NODE}.")
    folder = _CACHE / source.name
    if not _is_installed(source, folder):
        _install(npm, source, folder, name)
    shutil.copy(source / "loop.mjs", folder)
    return folder / "loop.mjs"


def _is_installed(source: Path, folder: Path) -> bool:
    """The lock is copied last, so it is there only beside all that it names."""
    lock = folder / "package-lock.json"
    return lock.is_file() and lock.read_bytes() == (source / "package-lock.json").read_bytes()


def _install(npm: str, source: Path, folder: Path, name: str) -> None:
    staging = folder.with_name(f"{folder.name}-new")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for each in _PACKAGES:
        shutil.copy(source / each, staging)
    done = subprocess.run(
        [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=staging,
        capture_output=True,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
    )
    if done.returncode != 0:
        pytest.skip(f"npm could not install {name}: {done.stderr.strip()[-300:]}")
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)


async def run(program: Path, request: dict[str, Any]) -> Any:
    """Runs the program with the request on standard input; returns what it writes, both JSON."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(program),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_RUN_TIMEOUT_S):
            output, errors = await process.communicate(json.dumps(request).encode())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return json.loads(output)
