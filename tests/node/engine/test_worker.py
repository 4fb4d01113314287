"""The engine process around a scripted engine."""

import os
import signal
import threading

import msgspec
import pytest

from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.engine import ScriptedEngine
from node.engine.scripted.script import Script, ScriptedModel, encode_script
from node.engine.worker import Worker
from node.ipc.child_process import linked_sockets
from node.ipc.framing import FrameSplitter, decode_report
from node.ipc.generate import GenerateRequest
from node.ipc.messages import (
    BROKEN_STATUS,
    Accepted,
    Broken,
    Cancel,
    ClearCache,
    Delta,
    EngineSpec,
    EngineStats,
    Frame,
    Load,
    Loaded,
    LoadFailed,
    Loading,
    Marked,
    MemoryLease,
    Pressure,
    Refused,
    SetLease,
    SetPressure,
    Shutdown,
    Submit,
)
from node.protocol.messages import FinishReason
from tests.node.engine.process import EngineProcess

WAIT_S = 30
pytestmark = pytest.mark.usefixtures("link_bytes")


def spec(script: Script, engine: str = "scripted") -> EngineSpec:
    return EngineSpec(
        engine=engine,
        model="scripted",
        folder="",
        max_rows=4,
        lease=MemoryLease(0, 0, 0),
        script_json=encode_script(script),
    )


def submit(uid: str, max_tokens: int | None = 5) -> Submit:
    return Submit(GenerateRequest(uid, tokens=(1, 2, 3), max_tokens=max_tokens))


def test_steps_continue_though_nobody_reads_their_output(monkeypatch: pytest.MonkeyPatch) -> None:
    stepped, steps, step = threading.Event(), 3000, ScriptedEngine.step
    lines: list[list[Delta]] = []
    left: list[int] = []

    def counted(engine: ScriptedEngine) -> list[Delta]:
        lines.append(step(engine))
        if len(lines) == steps:
            stepped.set()
        return lines[-1]

    monkeypatch.setattr(ScriptedEngine, "step", counted)
    # Of a link that breaks; it would be the end of the tests.
    monkeypatch.setattr(os, "_exit", left.append)
    model = ScriptedModel(context_tokens=steps + 100)
    script = Script(text=f"{'w' * 1000} " * steps, models=(model,), token_interval_s=0.0)
    ours, theirs = linked_sockets()
    ours.settimeout(WAIT_S)
    with ours, theirs:
        worker = Worker(theirs, "scripted")
        thread = threading.Thread(target=worker._serve, daemon=True)
        thread.start()
        worker._commands.put(Load(spec(script)))
        worker._commands.put(submit("a", max_tokens=None))
        assert stepped.wait(WAIT_S), "a step waits for a reader"
        worker._commands.put(Shutdown())
        data = bytearray()
        while piece := ours.recv(1 << 16):
            data += piece
        thread.join()
    reports = [decode_report(body) for body in FrameSplitter().feed(bytes(data))]
    received = [delta for report in reports if isinstance(report, Frame) for delta in report.deltas]
    assert received == [delta for deltas in lines for delta in deltas]
    assert (len(received), left) == (steps, [])


def test_loads_serves_and_shuts_down_cleanly() -> None:
    with EngineProcess(spec(Script(text="one two three", load_delay_s=0.05))) as engine:
        assert 0 <= engine.next(Loading).fraction <= 1
        assert engine.next(Loaded).max_rows == 4
        engine.send(submit("a"), submit("b"))
        assert engine.next(Accepted) == Accepted("a", 3, 0)
        rows = engine.rows(2)
        assert {text for text, _ in rows.values()} == {"one two three"}
        assert engine.shut_down() == (0, "")


def test_refuses_through_the_engine() -> None:
    with EngineProcess(spec(Script())) as engine:
        engine.send(Submit(GenerateRequest("a", tokens=(), max_tokens=1)))
        assert engine.next(Refused).uid == "a"


def test_marks_a_cancel_and_ends_the_sequence() -> None:
    with EngineProcess(spec(Script(wedge=True))) as engine:
        engine.send(submit("a"), Cancel("a"), Cancel("unknown"))
        assert engine.next(Marked).uid == "a"
        _, last = engine.rows(1)["a"]
        assert last.finish is FinishReason.CANCELLED


def test_a_failed_load_is_a_sentence_and_an_exit_status() -> None:
    with EngineProcess(spec(Script(load_failure="The script says no."))) as engine:
        assert engine.next(LoadFailed).reason == "The script says no."
        assert engine.end() == (1, "")


def test_a_load_that_breaks_is_a_sentence_too() -> None:
    with EngineProcess(spec(Script(load_out_of_memory=True))) as engine:
        assert engine.next(LoadFailed).reason.startswith("The engine failed to load scripted: ")
        status, errors = engine.end()
        assert status == 1 and "MemoryError" in errors


def test_what_it_writes_is_lines_of_a_log_whatever_a_model_is_called() -> None:
    name = "m\x1b[2J\nERROR forged"
    script = Script(load_out_of_memory=True, models=(ScriptedModel(name),))
    with EngineProcess(msgspec.structs.replace(spec(script), model=name)) as engine:
        _, errors = engine.end()
        name_in_log = r" ERROR The engine failed to load m\x1b[2J\nERROR forged: "
        assert name_in_log in errors.splitlines()[0] and "\x1b" not in errors


def test_an_engine_that_does_not_exist_is_a_failed_load() -> None:
    with EngineProcess(spec(Script(), engine="steam")) as engine:
        assert "steam" in engine.next(LoadFailed).reason


def test_a_failed_step_ends_its_sequences_and_no_more() -> None:
    with EngineProcess(spec(Script(step_failure_after_tokens=2))) as engine:
        engine.send(submit("a"))
        _, last = engine.rows(1)["a"]
        assert last.finish is FinishReason.ERROR
        assert last.error is not None and last.error.startswith("The engine failed on this step")
        engine.send(submit("b", max_tokens=1))
        assert engine.rows(1)["b"][1].finish is FinishReason.LENGTH


GPU_ERROR = (
    "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
    "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)"
)


def end_of_a_broken_one(engine: EngineProcess) -> tuple[Broken, dict[str, list[int]], str]:
    """Its last report, the token counts of the deltas until then, and what it wrote; checks how
    it ends."""
    counts: dict[str, list[int]] = {}
    *before, broken = engine.rest()
    for report in before:
        for delta in report.deltas if isinstance(report, Frame) else ():
            assert delta.finish is None
            counts.setdefault(delta.uid, []).append(delta.token_count)
    status, errors = engine.end()
    assert (status, "Traceback" in errors) == (BROKEN_STATUS, True)
    assert isinstance(broken, Broken)
    return broken, counts, errors


@pytest.mark.parametrize("reset_failure", [False, True])
def test_an_error_of_the_gpu_ends_the_process_once_all_is_sent(reset_failure: bool) -> None:
    script = Script(
        step_failure_after_tokens=2, step_failure_text=GPU_ERROR, reset_failure=reset_failure
    )
    with EngineProcess(spec(script)) as engine:
        engine.send(submit("a"), submit("b"))
        broken, counts, _ = end_of_a_broken_one(engine)
    assert GPU_ERROR in broken.reason and broken.is_overload
    assert counts["a"][:2] == [1, 2]


def test_an_error_of_the_gpu_in_a_command_ends_the_process_too() -> None:
    script = Script(stall_after_tokens=1, failing_command="cancel", step_failure_text=GPU_ERROR)
    with EngineProcess(spec(script)) as engine:
        engine.send(submit("a"))
        engine.next(Frame)
        engine.send(Cancel("a"))
        assert end_of_a_broken_one(engine)[0].is_overload


def test_failures_without_tokens_between_end_the_process() -> None:
    with EngineProcess(spec(Script(step_failure_after_tokens=0))) as engine:
        engine.send(submit("a"))
        assert engine.rows(1)["a"][1].finish is FinishReason.ERROR
        engine.send(submit("b"))
        broken, *_ = end_of_a_broken_one(engine)
    assert "a step that fails" in broken.reason and not broken.is_overload


def test_failures_with_tokens_between_end_no_process() -> None:
    with EngineProcess(spec(Script(step_failure_after_tokens=2))) as engine:
        for uid in ("a", "b", "c"):
            engine.send(submit(uid))
            assert engine.rows(1)[uid][1].finish is FinishReason.ERROR
        assert engine.shut_down()[0] == 0


def test_a_reset_that_fails_ends_the_process() -> None:
    with EngineProcess(spec(Script(step_failure_after_tokens=1, reset_failure=True))) as engine:
        engine.send(submit("a"))
        _, counts, errors = end_of_a_broken_one(engine)
        assert counts == {"a": [1]}
        # Nothing is tried with what is left inside.
        assert errors.count("StepFailure: The script asked for a reset") == 1


def test_leases_and_clears_are_answered_in_order() -> None:
    with EngineProcess(spec(Script(cache=ScriptedCache(capacity_tokens=9)))) as engine:
        engine.send(submit("a"))
        engine.rows(1)
        lease = MemoryLease(1, 2, 3)
        engine.send(SetLease(lease, 7), ClearCache(8), SetPressure(Pressure.SOFT))
        first, second = engine.next(EngineStats), engine.next(EngineStats)
        assert (first.confirmed, first.entries, first.lease) == ((7,), 1, lease)
        assert (second.confirmed, second.entries) == ((8,), 0)


def test_a_lease_is_answered_only_when_the_engine_is_within_it() -> None:
    model = ScriptedModel(kv_bytes_per_token=10)
    script = Script(models=(model,), tokens=3, token_interval_s=0.4)
    with EngineProcess(spec(script)) as engine:
        engine.send(submit("a", max_tokens=None))
        engine.next(Frame)
        engine.send(SetLease(MemoryLease(0, 0, 0), 1))
        before = engine.next(EngineStats)
        assert (before.confirmed, before.decoding_rows) == ((), 1)
        after = engine.next(EngineStats)
        assert (after.confirmed, after.live_kv_bytes) == ((1,), 0)


def test_a_newer_lease_is_not_delayed_by_one_that_it_replaces() -> None:
    script = Script(models=(ScriptedModel(kv_bytes_per_token=10),), stall_after_tokens=1)
    with EngineProcess(spec(script)) as engine:
        engine.send(submit("a", max_tokens=None))
        engine.next(Frame)
        engine.send(SetLease(MemoryLease(0, 0, 0), 1), ClearCache(2))
        assert engine.next(EngineStats).confirmed == ()
        assert engine.next(EngineStats).confirmed == (2,), "which is not the lease's answer"
        engine.send(SetLease(MemoryLease(0, 1000, 0), 3))
        assert engine.next(EngineStats).confirmed == (1, 3)


def test_a_lease_is_kept_when_what_is_beyond_it_is_pinned() -> None:
    model = ScriptedModel(kv_bytes_per_token=10)
    script = Script(models=(model,), cache=ScriptedCache(capacity_tokens=100))
    with EngineProcess(
        msgspec.structs.replace(spec(script), lease=MemoryLease(0, 0, 1000))
    ) as engine:
        engine.send(Submit(GenerateRequest("a", (1, 2, 3), max_tokens=1, warm=True)))
        engine.rows(1)
        engine.send(SetLease(MemoryLease(0, 0, 20), 1))
        stats = engine.next(EngineStats)
        assert (stats.stored_kv_bytes, stats.pinned_kv_bytes) == (30, 30)
        assert stats.confirmed == (1,)


def test_a_cancel_that_fails_ends_the_sequences_and_no_more() -> None:
    script = Script(stall_after_tokens=1, failing_command="cancel")
    with EngineProcess(spec(script)) as engine:
        engine.send(submit("a"), submit("b"))
        engine.next(Frame)
        engine.send(Cancel("a"))
        rows = engine.rows(2)
        for _, last in rows.values():
            assert last.finish is FinishReason.ERROR
            assert last.error is not None and "failed on a command" in last.error
        engine.send(submit("c", max_tokens=1))
        assert engine.rows(1)["c"][1].finish is FinishReason.LENGTH


def test_a_submit_that_fails_is_refused_with_a_sentence() -> None:
    with EngineProcess(spec(Script(failing_command="submit"))) as engine:
        engine.send(submit("a"))
        refused = engine.next(Refused)
        assert (refused.uid, refused.is_fault) == ("a", True)
        assert refused.reason.startswith("The engine failed on a command: ")


def test_a_clear_that_fails_is_not_answered_and_a_lease_that_fails_counts_by_what_is_used() -> None:
    with EngineProcess(spec(Script(failing_command="clear_cache"))) as engine:
        engine.send(ClearCache(1), SetLease(MemoryLease(0, 0, 0), 2))
        assert engine.next(EngineStats).confirmed == ()
        assert engine.next(EngineStats).confirmed == (2,)
    with EngineProcess(spec(Script(failing_command="set_lease"))) as engine:
        engine.send(SetLease(MemoryLease(0, 0, 0), 1))
        assert engine.next(EngineStats).confirmed == (1,)


def test_stats_are_reported_while_sequences_run_and_once_after() -> None:
    with EngineProcess(spec(Script(token_interval_s=0.25))) as engine:
        engine.send(submit("a", max_tokens=6))
        assert engine.next(EngineStats).decoding_rows == 1
        engine.rows(1)
        assert engine.next(EngineStats).decoding_rows == 0


def test_progress_is_sent_in_frames_without_deltas() -> None:
    script = Script(prefill_s_per_token=0.05, progress_interval_s=0.01, tokens=1)
    with EngineProcess(spec(script)) as engine:
        engine.send(submit("a"))
        (progress,) = engine.next(Frame).progress
        assert (progress.uid, progress.total_tokens) == ("a", 3)
        assert 0 <= progress.done_tokens < 3


def test_ends_with_the_agent_even_while_it_loads() -> None:
    with EngineProcess(spec(Script(load_delay_s=600))) as engine:
        engine.next(Loading)
        engine.hang_up()


def test_ignores_ctrl_c() -> None:
    with EngineProcess(spec(Script())) as engine:
        engine.next(Loaded)
        engine.process.send_signal(signal.SIGINT)
        engine.send(submit("a"))
        assert engine.rows(1)["a"][1].finish is FinishReason.LENGTH
        assert engine.shut_down()[0] == 0


def test_an_unload_that_fails_is_an_exit_status() -> None:
    with EngineProcess(spec(Script(unload_failure="It is stuck."))) as engine:
        engine.next(Loaded)
        status, errors = engine.shut_down()
        assert status == 1 and "It is stuck." in errors
