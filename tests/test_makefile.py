"""`make run` and its kin, in a folder whose path has a space, with programs that only say what they
were started; and by what Apple's make, 3.81, can read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = sorted(
    set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)[1].split())  # type: ignore[index]
)
NEWER_THAN_3_81 = {
    "shell assignment": r"^[^\t#]*!=",
    "immediate assignment of POSIX": r"::=",
    "one shell for a recipe": r"\.ONESHELL",
    "undefine": r"^\s*undefine\b",
    "private": r":\s*private\b",
    "grouped targets": r"&:",
    "functions": r"\$\((?:file|guile|let|intcmp) ",
    "another prefix": r"\.RECIPEPREFIX",
    "define with an operator": r"^define\b.*=",
}
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
IMPORT = """#!/bin/sh
echo "node-agent $@" >> "$CALLS"
mkdir -p "$MLX_FLEET_HOME/node/models/smollm2"
echo {} > "$MLX_FLEET_HOME/node/models/smollm2/config.json"
"""
SAY = '#!/bin/sh\necho "$(basename "$0") $@" >> "$CALLS"\n'


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class Clone:
    """A clone in which everything is installed and the demo model is fetched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "My Projects" / "mlx fleet"
        self.started = folder / "started"
        self.folder.mkdir(parents=True)
        self.started.write_text("")
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        (self.folder / ".cache/demo").mkdir(parents=True)
        (self.folder / ".cache/demo/smollm2.gguf").write_text("")
        program(self.folder / ".venv/bin/node-agent", IMPORT)
        program(self.folder / ".venv/bin/router", SAY)
        program(self.folder / ".venv/bin/python", SAY)
        for name in (".base", ".dev", ".clients"):
            (self.folder / ".venv" / name).write_text("")

    def make(self, *arguments: str, **environ: str) -> str:
        """Runs make; returns what it printed, errors too."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        done = subprocess.run(
            ["make", *arguments],
            cwd=self.folder,
            env={**kept, "CALLS": str(self.started), **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == int(environ.get("CODE", "0")), done.stdout + done.stderr
        return done.stdout + done.stderr

    def said(self) -> list[str]:
        lines = self.started.read_text().splitlines()
        self.started.write_text("")
        return lines


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_run_imports_the_demo_model_once(clone: Clone) -> None:
    imported = "node-agent import .cache/demo/smollm2.gguf --name smollm2"
    clone.make("run")
    assert clone.said() == [imported, "router up"]
    assert (clone.folder / ".fleet/node/models/smollm2/config.json").exists()
    clone.make("run", "ONCE=1", "PROMPT=Why is the sky blue?")
    once = "router up --port 0 --node-port 0 --model smollm2 --once Why is the sky blue?"
    assert clone.said() == [once]


def test_a_home_with_a_space_elsewhere_is_used(clone: Clone, tmp_path: Path) -> None:
    home = tmp_path / "Other Disk" / "fleet"
    clone.make("run", MLX_FLEET_HOME=str(home))
    assert (home / "node/models/smollm2/config.json").exists()


def test_bench_tells_where_the_model_is(clone: Clone) -> None:
    show = '#!/bin/sh\necho "$MLX_FLEET_SMOLLM2|$MLX_FLEET_SHARED|$@" >> "$CALLS"\n'
    program(clone.folder / ".venv/bin/python", show)
    model = clone.folder / ".cache/test-node/models/smollm2"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    clone.make("bench", "SHARED=/My Data", "ARGS=--quick")
    assert clone.said() == [f"{model}|/My Data|-m tests.bench --quick"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_can_be_planned_in_a_folder_with_a_space(clone: Clone, target: str) -> None:
    assert "No rule" not in clone.make("-n", target)


def test_an_old_python_is_told_what_to_do(clone: Clone) -> None:
    old = clone.folder / "old-python"
    program(old, '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.6" && exit\nexit 1\n')
    (clone.folder / ".venv/.base").unlink()
    text = clone.make(".venv/.base", "PYTHON=./old-python", CODE="2")
    assert "needs Python 3.11 or newer; this is Python 3.9.6." in text
    assert "brew install python@3.13" in text


def test_a_newer_python_is_found_beside_an_old_one(clone: Clone, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    program(programs / "python3", "#!/bin/sh\nexit 1\n")
    program(programs / "python3.13", '#!/bin/sh\n[ "$1" = -c ] || echo "chosen $@" >> "$CALLS"\n')
    program(clone.folder / ".venv/bin/pip", SAY)
    (clone.folder / ".venv/.base").unlink()
    clone.make(".venv/.base", PATH=f"{programs}:{os.environ['PATH']}")
    assert clone.said()[0] == "chosen -m venv .venv"


@pytest.mark.parametrize("feature", NEWER_THAN_3_81)
def test_the_makefile_has_nothing_that_apples_make_cannot_read(feature: str) -> None:
    assert re.search(NEWER_THAN_3_81[feature], MAKEFILE, re.M) is None
