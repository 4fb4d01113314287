"""The exclusion of models and KV from Time Machine."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from node.commands.backups import exclude_from_backups
from node.settings import Settings

WAIT_S = 30


class TimeMachine:
    """A `tmutil` that excludes what it is given, unless it refuses."""

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.excluded: set[str] = set()
        self.added: list[str] = []

    def run(self, command: Sequence[str]) -> str | None:
        program, verb, folder = command
        assert program == "tmutil" and Path(folder).is_dir()
        if verb == "isexcluded":
            mark = "[Excluded]" if folder in self.excluded else "[Included]"
            return f"{mark}    {folder}"
        assert verb == "addexclusion"
        self.added.append(folder)
        if self.refuses:
            return None
        self.excluded.add(folder)
        return ""


def test_models_and_kv_are_excluded_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    machine = TimeMachine()
    settings = Settings(home=tmp_path / "home of mine")
    for _ in range(2):
        exclude_from_backups(settings, machine.run)
    assert machine.added == [str(settings.models_folder), str(settings.kv_folder)]
    assert settings.kv_folder.stat().st_mode & 0o777 == 0o700
    assert not caplog.messages


def test_a_folder_that_cannot_be_excluded_is_a_warning_that_names_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = TimeMachine(refuses=True)
    settings = Settings(home=tmp_path / "home of mine")
    machine.excluded.add(str(settings.models_folder))
    exclude_from_backups(settings, machine.run)
    (line,) = caplog.messages
    assert f"Run `tmutil addexclusion '{settings.kv_folder}'`" in line
    assert "System Settings > General > Time Machine" in line


def test_a_folder_that_cannot_be_made_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "models").write_text("no folder")
    machine = TimeMachine()
    exclude_from_backups(Settings(home=tmp_path), machine.run)
    assert machine.added == [str(tmp_path / "kv")]
    assert "models cannot be made: File exists." in caplog.text


_AS_ON_A_MAC = """
import platform, sys
platform.system = lambda: "Darwin"
from node.cli import main
sys.exit(main())
"""


def test_the_agent_requests_the_exclusion_at_its_start(tmp_path: Path) -> None:
    program, calls = tmp_path / "tmutil", tmp_path / "calls"
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\n')
    program.chmod(0o755)
    home = tmp_path / "home"
    options = ["serve", "--home", str(home), "--port", "0", "--engine", "scripted"]
    with subprocess.Popen(
        [sys.executable, "-c", _AS_ON_A_MAC, *options, "--exit-on-stdin-eof"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    ) as process:
        try:
            deadline_s = time.monotonic() + WAIT_S
            while not calls.exists() or calls.read_text().count("\n") < 4:
                assert process.poll() is None and time.monotonic() < deadline_s
                time.sleep(0.05)
        finally:
            process.kill()
    assert calls.read_text().splitlines() == [
        f"{verb} {home / name}"
        for name in ("models", "kv")
        for verb in ("isexcluded", "addexclusion")
    ]
