"""Tests the doctor's findings and its advice."""

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from node.commands import agent_client, doctor
from node.commands.checks import Level
from node.commands.doctor import examine, run_doctor
from node.darwin import VirtualMemory
from node.hardware import Machine, MemoryReading
from node.settings import Settings
from serving.stay_awake import StayAwake
from tests.node.kernels import PlayedKernel

GIB = 1024**3
PMSET = """System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 disksleep            10
 sleep                {}
 displaysleep         2
"""


def answers(known: dict[str, str]) -> "Answers":
    return Answers(known)


class Answers:
    """Answers commands by their first word that is known."""

    def __init__(self, known: dict[str, str]) -> None:
        self._known = known

    def __call__(self, command: Sequence[str]) -> str | None:
        return next((self._known[word] for word in command if word in self._known), None)


def test_examines_a_mac(tmp_path: Path) -> None:
    kernel = PlayedKernel(
        {
            "hw.memsize": 64 * GIB,
            "machdep.cpu.brand_string": "Apple M4 Max",
            "iogpu.wired_limit_mb": 62000,
        },
        memory=VirtualMemory(20 * GIB, 10 * GIB, 0, 0),
        swap=3 * GIB,
    )
    known = {
        "pmset": "System-wide power settings:\nCurrently in use:\n sleep                10\n",
    }
    checks = {
        check.name: check for check in examine(Settings(home=tmp_path), answers(known), kernel)
    }
    assert "Apple M4 Max with 64 GiB, 30 GiB of them available" in checks["memory"].sentence
    assert "3.0 GiB are swapped out" in checks["memory"].sentence
    assert checks["sleep"].level is Level.WARN
    assert "after 10 min without use;" in checks["sleep"].sentence
    assert checks["wired limit"].level is Level.WARN
    assert checks["wired memory"].level is Level.OK
    assert checks["local network"].advice
    assert checks["mlx"].level is Level.FAIL
    assert "compiler" not in checks


@pytest.mark.parametrize(("sysctl", "words"), [(1, "Rosetta"), (0, "Intel Mac")])
def test_a_python_in_which_mlx_cannot_run_is_named(tmp_path: Path, sysctl: int, words: str) -> None:
    kernel = PlayedKernel({"sysctl.proc_translated": sysctl}, architecture="x86_64")
    check = next(examine(Settings(home=tmp_path), answers({}), kernel))
    assert (check.name, check.level) == ("python", Level.FAIL)
    assert words in check.sentence


def test_a_mac_without_a_gpu_fails_the_check() -> None:
    on_cpu = answers({"-c": "0.32.4 Device(cpu, 0)"})
    check = doctor.check_mlx(on_cpu, PlayedKernel({}))
    assert check.level is Level.FAIL and "no GPU" in check.sentence
    assert doctor.check_mlx(on_cpu, None).level is Level.OK
    on_gpu = answers({"-c": "0.32.4 Device(gpu, 0)"})
    assert doctor.check_mlx(on_gpu, PlayedKernel({})).level is Level.OK


def test_examines_a_linux_machine(tmp_path: Path) -> None:
    checks = list(examine(Settings(home=tmp_path), answers({"-c": "0.32 cpu"}), None))
    names = [check.name for check in checks]
    assert names[:4] == ["python", "extra", "mlx", "versions"]
    assert names[4:8] == ["settings", "memory", "disk", "disk speed"]
    assert {"compiler", "openblas"} <= set(names)
    assert all(check.advice for check in checks if check.level is not Level.OK)


def test_a_mac_that_does_not_sleep_is_fine() -> None:
    for mode in StayAwake:
        desktop = answers({"pmset": PMSET.format("0 (sleep prevented by powerd)")})
        assert doctor.check_sleep(mode, desktop).level is Level.OK
        assert doctor.check_sleep(mode, answers({})).level is Level.WARN
    assert doctor.check_wired_limit(Machine("x", GIB)).level is Level.OK
    assert doctor.check_wired_limit(Machine("x", 10 * GIB, 8 * GIB)).level is Level.OK
    low = doctor.check_wired_limit(Machine("x", 10 * GIB, 2 * GIB))
    assert (low.level, "iogpu.wired_limit_mb=0" in low.advice) == (Level.WARN, True)


def test_the_check_of_a_mac_that_sleeps_reports_what_the_agent_does_about_it() -> None:
    laptop = answers({"pmset": PMSET.format("1 (sleep prevented by caffeinate, powerd)")})
    checks = {mode: doctor.check_sleep(mode, laptop) for mode in StayAwake}
    assert [each.level for each in checks.values()] == [Level.WARN, Level.OK, Level.WARN]
    for check in checks.values():
        assert "after 1 min without use (now kept awake by caffeinate, powerd)" in check.sentence
        assert "sudo" not in check.advice
    assert "while requests, loads or pulls are open" in checks[StayAwake.BUSY].sentence
    assert "--stay-awake always" in checks[StayAwake.BUSY].advice
    assert "even during a response" in checks[StayAwake.NEVER].sentence


def test_warns_of_memory_that_is_to_be_wired(tmp_path: Path) -> None:
    check = doctor.check_wired(Settings(home=tmp_path, wired="weights"))
    assert check.level is Level.WARN
    assert "the weights wired" in check.sentence
    assert "kernel panic" in check.advice


def test_compares_the_limit_with_the_memory(tmp_path: Path) -> None:
    machine = Machine("x", 16 * GIB)

    def level(limit_gib: int | None, available_gib: int = 16) -> Level:
        limit = None if limit_gib is None else limit_gib * GIB
        settings = Settings(home=tmp_path, memory_limit_bytes=limit)
        reading = MemoryReading(available_bytes=available_gib * GIB)
        return doctor.check_memory(settings, machine, reading).level

    assert level(None) is Level.OK
    assert level(17) is Level.FAIL
    assert level(2) is Level.WARN
    assert level(8, available_gib=4) is Level.WARN
    assert doctor.check_memory(Settings(home=tmp_path), machine, MemoryReading()).level is Level.OK


def make_model(home: Path, name: str, config: str = "{}") -> None:
    folder = home / "models" / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    save_file({"w": np.zeros(4096, np.float32)}, folder / "model.safetensors")


def test_plans_the_memory_of_each_model(tmp_path: Path) -> None:
    make_model(tmp_path, "org--tiny")
    machine = Machine("x", 16 * GIB)
    (plan,) = doctor.plan_models(Settings(home=tmp_path), machine, 10**12)
    assert (plan.name, plan.level) == ("plan of org/tiny", Level.OK)
    assert plan.figures["weight_bytes"] == 4 * 4096
    total_bytes = sum(plan.figures[f"{part}_bytes"] for part in ("weight", "live_kv", "stored_kv"))
    assert 11 * GIB < total_bytes < machine.default_limit_bytes
    assert plan.figures["max_rows"] == 16
    assert "16 rows" in plan.sentence
    assert "kv_cache_bits off (auto: nothing of the KV is lost)" in plan.reasons
    assert any(line.startswith("stored KV ") for line in plan.reasons)
    small = Settings(home=tmp_path, memory_limit_bytes=GIB // 2 + 1)
    (plan,) = doctor.plan_models(small, machine, 10**12)
    assert plan.level is Level.WARN
    assert "too few" in plan.sentence


def test_a_models_folder_that_is_none_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    found = doctor.check_models(Settings(home=tmp_path))
    assert found.level is Level.FAIL
    assert "Not a directory" in found.sentence


def test_a_token_that_others_can_read_is_a_failure(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert doctor.check_token(settings).level is Level.OK
    settings.token_file.write_text("x")
    settings.token_file.chmod(0o644)
    found = doctor.check_token(settings)
    assert found.level is Level.FAIL
    assert "chmod 600" in found.advice
    settings.token_file.chmod(0o600)
    assert doctor.check_token(settings).level is Level.OK


def test_a_port_that_another_program_has_is_told_from_that_of_the_own_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_client, "GET_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(home=tmp_path, port=taken.getsockname()[1])
        check = doctor.check_port(settings)
        assert (check.level, "--port" in check.advice) == (Level.FAIL, True)
        monkeypatch.setattr(doctor, "running_agent", lambda _: object())
        check = doctor.check_port(settings)
        assert check.level is Level.OK
        assert "The agent of this home listens" in check.sentence


def test_finds_a_full_disk_and_missing_tools(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert doctor.check_disk(settings, lambda _: 10**9).level is Level.WARN
    assert doctor.check_disk(settings, lambda _: 10**12).level is Level.OK
    assert doctor.check_compiler(lambda _: None).level is Level.WARN
    assert doctor.check_blas(lambda: None).level is Level.WARN
    assert doctor.check_blas(lambda: "/lib/blas").level is Level.OK


def test_prints_lines_or_json_and_returns_whether_all_is_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(home=tmp_path)
    make_model(tmp_path, "[tiny]")
    well = run_doctor(settings, as_json=True)
    checks = json.loads(capsys.readouterr().out)
    assert well == all(check["level"] != "fail" for check in checks)
    (tmp_path / "token").write_text("x")
    (tmp_path / "token").chmod(0o666)
    assert not run_doctor(settings, as_json=False)
    shown = capsys.readouterr().out
    assert "chmod 600" in shown.replace("\n", " ")
    assert "[tiny]" in shown, "which is no style"
    assert "nothing of the KV is lost" in shown


def test_plans_the_models_that_are_served_from_elsewhere(tmp_path: Path) -> None:
    make_model(tmp_path / "elsewhere", "tiny")
    folder = tmp_path / "elsewhere" / "models" / "tiny"
    settings = Settings(home=tmp_path / "home", models=(folder,))
    machine = Machine("x", 16 * GIB)
    assert [plan.name for plan in doctor.plan_models(settings, machine, 10**12)] == ["plan of tiny"]
    assert doctor.check_models(settings).level is Level.OK


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_limit_bytes": GIB, "kv_cache_bytes": 2 * GIB}, "lower --kv-cache-size"),
        ({"models": (Path("/nowhere"),)}, "/nowhere"),
        ({"warm": (("m", Path("/nowhere")),)}, "warm prompts"),
    ],
)
def test_what_serve_would_refuse_is_a_failure(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    machine = Machine("x", 16 * GIB)
    assert doctor.check_settings(Settings(home=tmp_path), machine).level is Level.OK
    found = doctor.check_settings(Settings(home=tmp_path, **changes), machine)
    assert found.level is Level.FAIL
    assert words in found.sentence
