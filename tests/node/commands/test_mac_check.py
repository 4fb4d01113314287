"""`node-agent doctor --full`, with sections that are played."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from node.commands import mac_check, mac_settings, trials
from node.commands.mac_check import (
    FullCheckOptions,
    findings,
    last_soak,
    probed,
    run_full,
    soak,
    write_report,
)
from node.engine.probe.line import Line
from node.settings import Settings


def line(ok: bool | None = True, section: str = "played") -> Line:
    return Line(section, "a name", "something", "found", ok, 0.5)


@pytest.fixture
def wanted(tmp_path: Path) -> FullCheckOptions:
    return FullCheckOptions(Settings(home=tmp_path / "home"), tmp_path)


@pytest.fixture
def sections(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The probed sections; each yields one line."""
    sections: list[tuple[str, ...]] = []

    def play(section: str, *rest: str) -> Iterator[Line]:
        sections.append((section, *rest))
        yield line(section=section)

    monkeypatch.setattr(mac_check, "probed", play)
    for name in ("limits", "processes", "streams"):
        monkeypatch.setattr(trials, name, lambda: iter([line()]))
    return sections


def test_the_report_is_written_as_json_and_as_text(
    wanted: FullCheckOptions, sections: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_full(wanted, as_json=False)
    report = json.loads((wanted.out / "mac-report.json").read_text())
    lines = msgspec.convert(report["lines"], list[Line])
    assert {"played", "device", "hybrids", "settings of macOS"} <= {each.section for each in lines}
    text = (wanted.out / "mac-report.txt").read_text()
    assert all(each.name in text for each in lines)
    assert "ok, 0 failed" in text
    assert "mac-report.txt" in capsys.readouterr().out


def test_a_line_that_failed_makes_the_command_fail(
    wanted: FullCheckOptions, sections: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trials, "limits", lambda: iter([line(ok=False)]))
    assert not run_full(wanted, as_json=True)


def test_without_the_model_its_sections_report_how_to_get_it(
    wanted: FullCheckOptions, sections: list[tuple[str, ...]]
) -> None:
    found = {each.section: each for each in findings(wanted)}
    assert "make mac-check" in found["outputs"].found
    assert found["outputs"].ok is None
    assert [section for section, *_ in sections] == ["device", "hybrids"]


def test_with_the_model_all_sections_are_tried(
    wanted: FullCheckOptions, sections: list[tuple[str, ...]]
) -> None:
    wanted.model.mkdir(parents=True)
    (wanted.model / "config.json").write_text("{}")
    list(findings(wanted))
    assert [section for section, *_ in sections] == [
        "device",
        "memory",
        "outputs",
        "speeds",
        "hybrids",
    ]


def test_on_linux_each_line_of_a_mac_reports_that_it_is_none(wanted: FullCheckOptions) -> None:
    lines = list(mac_settings.settings_of_macos(wanted.settings, lambda _command: None, mac=False))
    assert len(lines) == 5
    assert all(each.ok is None and "this is no Mac" in each.found for each in lines)


def test_a_section_whose_process_dies_is_one_more_line() -> None:
    (found,) = probed("nosuch")
    assert found.ok is False
    assert "ended with 1 (ValueError)" in found.found


class Panic(BaseException):
    """The end of the machine."""


def test_a_soak_that_did_not_end_is_reported_at_the_next_run(
    wanted: FullCheckOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_section: str) -> Iterator[Line]:
        yield line()
        raise Panic

    assert list(last_soak(wanted)) == []
    monkeypatch.setattr(mac_check, "probed", panic)
    with pytest.raises(Panic):
        list(soak(wanted))
    (reported,) = last_soak(wanted)
    assert reported.ok is False and "may have panicked" in reported.found
    assert list(last_soak(wanted)) == []


def test_a_soak_that_is_stopped_leaves_no_mark(
    wanted: FullCheckOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_section: str) -> Iterator[Line]:
        yield line()
        raise KeyboardInterrupt

    monkeypatch.setattr(mac_check, "probed", stop)
    with pytest.raises(KeyboardInterrupt):
        list(soak(wanted))
    assert list(last_soak(wanted)) == []


def test_a_soak_that_ends_leaves_no_mark(
    wanted: FullCheckOptions, sections: list[tuple[str, ...]]
) -> None:
    assert len(list(soak(wanted))) == 1
    assert list(last_soak(wanted)) == []


def test_the_report_names_no_host_and_no_user(wanted: FullCheckOptions) -> None:
    lines = [
        *mac_settings.system(lambda _command: None, None),
        *trials.limits(),
    ]
    files = write_report(wanted.out, lines, 1.0)
    words = "".join(file.read_text() for file in files)
    assert str(wanted.out) not in words
    assert str(Path.home()) not in words
