"""Where the records of a process go, in processes of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from serving.logs.logs import LogFileUnusable, logging_to
from serving.logs.options import LogOptions, read_level
from serving.setting import BadSetting

BEGIN = """
import logging, os, subprocess, sys
from pathlib import Path
from serving.logs import logs
from serving.logs.options import LogOptions
"""


def run(script: str) -> tuple[str, str]:
    """Runs it and returns what it prints to standard output and standard error."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script], capture_output=True, text=True, check=True
    )
    return done.stdout, done.stderr


def test_a_level_counts_for_our_loggers_only() -> None:
    _, err = run("""
with logs.logging_to(LogOptions(level="debug")):
    for name in ("router.x", "mlx_fleet.nodes", "node.y", "httpx"):
        logging.getLogger(name).debug("debug of %s", name)
        logging.getLogger(name).warning("warning of %s", name)
""")
    told = [line.split(" ", 2)[2] for line in err.splitlines()]
    assert told == [
        *("DEBUG debug of router.x", "WARNING warning of router.x"),
        *("DEBUG debug of mlx_fleet.nodes", "WARNING warning of mlx_fleet.nodes"),
        *("DEBUG debug of node.y", "WARNING warning of node.y"),
        "WARNING warning of httpx",
    ]


def test_a_file_has_records_and_whatever_a_child_prints_until_the_end(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "fleet.log"
    child = "from serving.logs.logs import log_like_parent as f; f(); import logging, sys; "
    child += (
        "logging.getLogger('node.engine').debug('of the engine'); print('abort', file=sys.stderr)"
    )
    _, err = run(f"""
with logs.logging_to(LogOptions("debug", "json", Path({str(file)!r}))):
    logging.getLogger("router").info("begins")
    subprocess.run([sys.executable, "-c", {child!r}], check=True)
print("to the terminal", file=sys.stderr)
""")
    assert err == "to the terminal\n"
    begins, engine, abort = file.read_text().splitlines()
    assert '"begins"' in begins and '"level": "debug"' in engine and abort == "abort"
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_rotated_file_is_the_one_that_others_hold_open(tmp_path: Path) -> None:
    file = tmp_path / "fleet.log"
    run(f"""
logs.ROTATE_BYTES = 1000
with logs.logging_to(LogOptions(file=Path({str(file)!r}))):
    for number in range(30):
        logging.getLogger("router").info("line %d %s", number, "x" * 100)
    os.write(2, b"a child\\n")
""")
    assert file.read_text().endswith("a child\n") and file.stat().st_size < 1100
    kept = sorted(each.name for each in tmp_path.iterdir())
    assert (
        kept == ["fleet.log", *(f"fleet.log.{number}" for number in range(1, 5 + 1))][: len(kept)]
    )
    assert len(kept) > 2


def test_request_lines_go_to_standard_output() -> None:
    out, err = run("""
with logs.logging_to(LogOptions()):
    logs.requests_to_stdout("text")
    logging.getLogger(logs.REQUESTS).info("a request")
""")
    assert out.endswith("INFO a request\n") and err == ""


def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(LogFileUnusable, match=r"log file .* cannot be written \(Is a directory\)"),
        logging_to(LogOptions(file=tmp_path)),
    ):
        pass


def test_a_level_is_read_in_any_case_of_letters() -> None:
    assert [read_level("k", text) for text in ("INFO", "Debug", "warning")] == [
        *("info", "debug", "warning")
    ]
    with pytest.raises(
        BadSetting, match="k must be one of debug, info, warning, error, not 'loud'"
    ):
        read_level("k", "loud")
