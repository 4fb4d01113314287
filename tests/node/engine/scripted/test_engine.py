"""The scripted engine: pace, faults, usage."""

import msgspec
import pytest

from node.app import scripted_entries
from node.engine.base import Engine, LoadError
from node.engine.scripted.cache import ScriptedCache
from node.engine.scripted.engine import ScriptedEngine, load
from node.engine.scripted.faults import EngineHooks, StepFailure, UnloadFailure
from node.engine.scripted.script import (
    Script,
    ScriptedModel,
    encode_script,
    parse_script,
)
from node.ipc.generate import GenerateRequest
from node.ipc.messages import (
    Accepted,
    Delta,
    EngineSpec,
    Loaded,
    MemoryLease,
    Pressure,
    Progress,
    Refused,
)
from node.protocol.messages import FinishReason
from node.protocol.overflow import Overflow


class Clock:
    """Time that moves only when it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Died(Exception):
    pass


def die() -> None:
    raise Died


def make(script: Script, *, max_rows: int = 4, clock: Clock | None = None) -> ScriptedEngine:
    info = Loaded(weight_bytes=1, context_tokens=100, max_rows=max_rows, vocab_size=256)
    return ScriptedEngine(info, script, clock=clock or Clock(), hooks=EngineHooks(die=die))


def request(
    uid: str = "r",
    tokens: tuple[int, ...] = (1, 2, 3),
    max_tokens: int | None = None,
    stops: tuple[str, ...] = (),
) -> GenerateRequest:
    return GenerateRequest(uid=uid, tokens=tokens, max_tokens=max_tokens, stops=stops)


def run(engine: ScriptedEngine, request: GenerateRequest) -> list[Delta]:
    """All deltas of one request, as fast as the engine steps."""
    assert isinstance(engine.submit(request), Accepted)
    deltas: list[Delta] = []
    while not deltas or deltas[-1].finish is None:
        assert engine.wait_s() == 0
        deltas += engine.step()
    return deltas


def text_of(deltas: list[Delta]) -> str:
    return "".join(part.text for delta in deltas for part in delta.parts)


def test_is_an_engine() -> None:
    engine: Engine = make(Script())
    assert engine.wait_s() is None
    assert engine.step() == []


def test_generates_its_text_and_stops() -> None:
    deltas = run(make(Script(text="one two three")), request())
    assert text_of(deltas) == "one two three"
    assert [delta.token_count for delta in deltas] == [1, 2, 3]
    last = deltas[-1]
    assert last.finish is FinishReason.STOP
    assert last.usage is not None
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (3, 3)


def test_max_tokens_ends_with_length() -> None:
    deltas = run(make(Script(text="one two three")), request(max_tokens=2))
    assert text_of(deltas) == "one two"
    assert deltas[-1].finish is FinishReason.LENGTH
    assert len(run(make(Script(tokens=5)), request(max_tokens=9))) == 9


def test_the_script_sets_the_length_of_an_answer_without_max_tokens() -> None:
    assert len(run(make(Script(tokens=5)), request())) == 5
    assert len(run(make(Script()), request())) == 32
    assert text_of(run(make(Script(text="a b", tokens=3)), request())) == "a b a"


def test_the_context_ends_an_answer() -> None:
    deltas = run(make(Script(tokens=1000)), request(tokens=(1,) * 97))
    assert len(deltas) == 3
    assert deltas[-1].finish is FinishReason.LENGTH


def test_answers_depend_on_the_prompt_and_repeat() -> None:
    engine = make(Script())
    first = text_of(run(engine, request(tokens=(1, 2))))
    assert text_of(run(engine, request(tokens=(1, 2)))) == first
    assert text_of(run(engine, request(tokens=(1, 3)))) != first


def test_a_stop_string_over_two_tokens_ends_the_sequence_and_is_not_returned() -> None:
    deltas = run(make(Script(text="one two three four")), request(stops=("o thr",)))
    assert text_of(deltas) == "one tw"
    assert deltas[-1].finish is FinishReason.STOP
    assert text_of(run(make(Script(text="one two")), request(stops=("two three",)))) == "one two"


def test_refuses_a_prompt_without_room_for_an_answer() -> None:
    engine = make(Script())
    assert isinstance(engine.submit(request(tokens=(1,) * 99)), Accepted)
    refused = engine.submit(request(tokens=(1,) * 100))
    assert isinstance(refused, Refused)
    assert (refused.param, refused.overflow) == ("messages", Overflow(100, 100))
    assert isinstance(engine.submit(request(tokens=())), Refused)


def test_keeps_the_pace_of_the_script() -> None:
    clock = Clock()
    script = Script(
        accept_delay_s=1, prefill_s_per_token=2, first_token_delay_s=0.5, token_interval_s=0.25
    )
    engine = make(script, clock=clock)
    engine.submit(request(max_tokens=3))
    waits: list[float] = []
    deltas: list[Delta] = []
    while not deltas or deltas[-1].finish is None:
        wait_s = engine.wait_s()
        assert wait_s is not None
        waits.append(wait_s)
        clock.now_s += wait_s
        deltas += engine.step()
    assert waits == [1, 6.5, 0.25, 0.25]
    usage = deltas[-1].usage
    assert usage is not None
    assert (usage.queue_s, usage.prefill_s, usage.decode_s) == (1, 6.5, 0.5)


def test_one_step_serves_all_due_sequences_and_the_rest_wait_for_a_place() -> None:
    engine = make(Script(), max_rows=2)
    for uid in ("a", "b", "c"):
        engine.submit(request(uid, max_tokens=2))
    steps = [[delta.uid for delta in engine.step()] for _ in range(4)]
    assert steps == [["a", "b"], ["a", "b"], ["c"], ["c"]]
    assert engine.wait_s() is None


def test_cancels_a_waiting_and_a_running_sequence() -> None:
    engine = make(Script(), max_rows=1)
    engine.submit(request("a"))
    engine.submit(request("b"))
    engine.step()
    for uid, tokens in (("b", 0), ("a", 1)):
        [delta] = engine.cancel(uid)
        assert delta is not None
        assert (delta.finish, delta.token_count) == (FinishReason.CANCELLED, tokens)
        assert delta.usage is not None
        assert engine.cancel(uid) == []
    assert engine.wait_s() is None


def test_a_wedged_engine_accepts_and_never_answers() -> None:
    engine = make(Script(wedge=True))
    engine.submit(request())
    assert engine.wait_s() is None
    assert engine.step() == []
    assert engine.cancel("r")


@pytest.mark.parametrize("count", [0, 2])
def test_stalls_after_so_many_tokens(count: int) -> None:
    engine = make(Script(stall_after_tokens=count))
    engine.submit(request())
    assert sum(len(engine.step()) for _ in range(5)) == count
    assert engine.wait_s() is None


def test_crashes_after_so_many_tokens() -> None:
    engine = make(Script(crash_after_tokens=1))
    engine.submit(request())
    assert len(engine.step()) == 1
    with pytest.raises(Died):
        engine.step()


def test_a_failing_step_is_followed_by_a_reset_that_ends_every_sequence() -> None:
    engine = make(Script(step_failure_after_tokens=1), max_rows=1)
    engine.submit(request("a"))
    engine.submit(request("b"))
    engine.step()
    with pytest.raises(StepFailure):
        engine.step()
    deltas = engine.reset("It broke.")
    assert [(delta.uid, delta.finish, delta.error) for delta in deltas] == [
        ("a", FinishReason.ERROR, "It broke."),
        ("b", FinishReason.ERROR, "It broke."),
    ]
    assert engine.wait_s() is None


def cached(engine: ScriptedEngine, tokens: tuple[int, ...]) -> int:
    deltas = run(engine, request(tokens=tokens, max_tokens=1))
    assert deltas[-1].usage is not None
    return deltas[-1].usage.cached_tokens


def test_a_trimmable_cache_reuses_the_common_prefix() -> None:
    engine = make(Script(cache=ScriptedCache(capacity_tokens=50)))
    assert cached(engine, (1, 2, 3, 4)) == 0
    assert cached(engine, (1, 2, 9)) == 2
    assert cached(engine, (1, 2, 3, 4)) == 3, "the last token is always computed"


def test_a_snapshot_cache_reuses_whole_prompts_only() -> None:
    engine = make(Script(cache=ScriptedCache(capacity_tokens=50, trimmable=False)))
    cached(engine, (1, 2, 3, 4))
    assert cached(engine, (1, 2, 9)) == 0
    assert cached(engine, (1, 2, 3, 4)) == 0
    assert cached(engine, (1, 2, 3, 4, 5, 6)) == 4


def test_the_cache_forgets_the_least_recently_used_prompt() -> None:
    engine = make(Script(cache=ScriptedCache(capacity_tokens=6)))
    cached(engine, (1, 1, 1))
    cached(engine, (2, 2, 2))
    assert cached(engine, (1, 1, 1)) == 2
    cached(engine, (3, 3, 3))
    assert cached(engine, (2, 2, 2)) == 0
    assert cached(engine, (4,) * 7) == 0
    assert cached(engine, (4,) * 7) == 0, "larger than the cache"


def test_prompts_of_other_salts_are_not_reused() -> None:
    engine = make(Script(cache=ScriptedCache(capacity_tokens=50)))
    usages = [
        run(engine, GenerateRequest("r", (1, 2, 3), 1, salt=salt))[-1].usage
        for salt in ("one", "two", "", "one")
    ]
    assert [usage.cached_tokens for usage in usages if usage is not None] == [0, 0, 0, 2]


def kinds(engine: ScriptedEngine) -> list[tuple[str, int]]:
    return [(event.kind.value, event.entry) for event in engine.take_cache_events()]


def leased(stored_bytes: int, script: Script | None = None) -> ScriptedEngine:
    """With a cache of up to a hundred tokens of ten bytes, as far as the lease allows."""
    script = script or Script(cache=ScriptedCache(capacity_tokens=100), tokens=1)
    info = Loaded(weight_bytes=7, context_tokens=100, max_rows=4, vocab_size=256)
    engine = ScriptedEngine(
        info, script, kv_bytes_per_token=10, clock=Clock(), hooks=EngineHooks(die=die)
    )
    engine.set_lease(MemoryLease(7, 0, stored_bytes))
    return engine


def test_the_cache_keeps_within_the_lease_and_reports_what_happens_to_it() -> None:
    engine = leased(50)
    run(engine, request("a", (1, 2, 3)))
    run(engine, request("b", (4, 5, 6)))
    assert kinds(engine) == [("stored", 1), ("stored", 2), ("evicted", 1)]
    run(engine, request("c", (4, 5, 6, 7)))
    assert kinds(engine) == [("stored", 3), ("evicted", 2)]
    stats = engine.stats()
    assert (stats.stored_kv_bytes, stats.live_kv_bytes, stats.active_bytes) == (40, 0, 47)
    assert (stats.entries, stats.prefill_tokens, stats.cached_tokens) == (1, 7, 3)
    engine.set_lease(MemoryLease(7, 0, 39))
    assert kinds(engine) == [("evicted", 3)]
    assert engine.stats().lease == MemoryLease(7, 0, 39)


def test_a_running_sequence_is_live_kv() -> None:
    engine = leased(0, Script(token_interval_s=1.0))
    engine.submit(request("a", (1, 2, 3)))
    assert engine.stats().waiting_rows == 1
    assert engine.wait_s() == 0
    assert engine.stats().prefilling_rows == 1
    engine.step()
    assert (engine.stats().decoding_rows, engine.stats().live_kv_bytes) == (1, 40)


def test_hard_pressure_empties_the_cache_and_keeps_it_empty() -> None:
    engine = leased(100)
    engine.set_lease(MemoryLease(7, 1 << 20, 100))
    run(engine, request("a"))
    engine.set_pressure(Pressure.HARD)
    assert engine.stats().stored_cap_bytes == 0
    run(engine, request("b", (4,)))
    assert kinds(engine) == [("stored", 1), ("evicted", 1)]
    engine.set_pressure(Pressure.NONE)
    run(engine, request("c", (4,)))
    assert kinds(engine) == [("stored", 2)]


def test_soft_pressure_drops_some_and_keeps_what_is_stored_now() -> None:
    engine = leased(100)
    for uid, tokens in (("a", (1, 2, 3)), ("b", (4, 5)), ("c", (6, 7))):
        run(engine, request(uid, tokens))
    engine.set_pressure(Pressure.SOFT)
    # Of 70 bytes three quarters are kept, in whole prompts.
    assert (engine.stats().stored_cap_bytes, engine.stats().stored_kv_bytes) == (52, 40)
    (last,) = run(engine, request("d", (6, 7, 8)))
    assert last.usage is not None and last.usage.cached_tokens == 2
    assert kinds(engine)[3:] == [("evicted", 1), ("stored", 4), ("evicted", 2)]


def test_very_short_of_memory_it_answers_small_requests_only() -> None:
    engine = leased(100)
    engine.set_lease(MemoryLease(0, live_kv_bytes=8 * 50, stored_kv_bytes=100))
    engine.set_pressure(Pressure.HARD)
    assert isinstance(engine.submit(request("a", (1, 2), max_tokens=3)), Accepted)
    refused = engine.submit(request("b", (1, 2), max_tokens=4))
    assert isinstance(refused, Refused) and refused.is_short
    warm = engine.submit(msgspec.structs.replace(request("w", (1,), max_tokens=1), warm=True))
    assert isinstance(warm, Refused) and warm.is_short
    engine.set_pressure(Pressure.SOFT)
    assert isinstance(engine.submit(request("c", (1, 2), max_tokens=4)), Accepted)


def test_a_warm_prompt_has_no_output_and_stays_until_a_clear() -> None:
    engine = leased(50)
    (last,) = run(engine, msgspec.structs.replace(request("w", (1, 2, 3)), warm=True))
    assert (last.finish, last.token_count, last.parts) == (FinishReason.STOP, 0, ())
    assert last.usage is not None
    assert last.usage.prompt_tokens == 3
    run(engine, request("a", (4, 5)))
    run(engine, request("b", (6, 7)))
    run(engine, request("c", (8, 9, 8)))
    assert kinds(engine) == [("stored", 1), ("stored", 2), ("stored", 3), ("evicted", 2)]
    engine.clear_cache()
    assert kinds(engine) == [("evicted", 1), ("evicted", 3)]
    assert engine.stats().stored_kv_bytes == 0


def test_a_warm_prompt_has_no_choices() -> None:
    warm = msgspec.structs.replace(request("w", (1, 2, 3)), warm=True, choices=2)
    refused = make(Script()).submit(warm)
    assert isinstance(refused, Refused)
    assert refused.param == "n"


def test_a_warm_prompt_that_is_not_kept_is_an_error() -> None:
    engine = leased(20)
    (last,) = run(engine, msgspec.structs.replace(request("w", (1, 2, 3)), warm=True))
    assert (last.finish, last.token_count) == (FinishReason.ERROR, 0)
    assert last.error is not None and "no room" in last.error


def test_what_is_cached_is_known_when_the_prefill_begins() -> None:
    engine = make(Script(cache=ScriptedCache(capacity_tokens=100)), max_rows=1)
    for uid in "ab":
        accepted = engine.submit(request(uid, (1, 2, 3), max_tokens=1))
        assert isinstance(accepted, Accepted)
        assert accepted.cached_tokens == 0
    ends = [delta for _ in range(2) for delta in engine.step()]
    assert [end.usage.cached_tokens for end in ends if end.usage] == [0, 2]


def test_reports_the_progress_of_a_prefill() -> None:
    clock = Clock()
    script = Script(prefill_s_per_token=1.0, progress_interval_s=2.0)
    engine = make(script, clock=clock)
    engine.submit(request("a", (1,) * 10))
    assert engine.wait_s() == 2.0
    clock.now_s += 2.0
    assert (engine.step(), engine.wait_s()) == ([], 2.0)
    assert engine.take_progress() == (Progress("a", 2, 10),)
    assert engine.take_progress() == ()
    clock.now_s += 8.0
    assert len(engine.step()) == 1


def spec(script: Script, model: str = "scripted") -> EngineSpec:
    return EngineSpec(
        engine="scripted",
        model=model,
        folder="",
        max_rows=3,
        lease=MemoryLease(0, 0, 0),
        script_json=encode_script(script),
    )


def test_loads_the_model_of_the_script_and_reports_progress() -> None:
    model = ScriptedModel("big", weight_bytes=5, context_tokens=7)
    progress: list[float] = []
    engine = load(spec(Script(models=(model,), load_delay_s=0.03), "big"), progress.append)
    assert engine.info == Loaded(weight_bytes=5, context_tokens=7, max_rows=3, vocab_size=256)
    assert progress[-1] == 1.0
    assert progress == sorted(progress)
    assert load(spec(Script(max_rows=9)), progress.append).info.max_rows == 9


def test_a_load_fails_as_scripted() -> None:
    with pytest.raises(LoadError, match="Broken weights"):
        load(spec(Script(load_failure="Broken weights.")), lambda _: None)
    with pytest.raises(MemoryError):
        load(spec(Script(load_out_of_memory=True)), lambda _: None)
    with pytest.raises(LoadError, match="other"):
        load(spec(Script(), "other"), lambda _: None)


@pytest.mark.parametrize("text", ['{"txet": "x"}', "[", '{"models": []}', '{"wedge": 1}'])
def test_a_bad_script_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(LoadError, match="script"):
        parse_script(text)


def test_lists_the_models_of_the_script_as_if_on_disk() -> None:
    (entry,) = scripted_entries(parse_script(""))
    assert (entry.name, entry.context_tokens) == ("scripted", 32_768)


def test_an_unload_takes_its_time_and_fails_as_scripted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    make(Script(unload_delay_s=3.0)).close()
    assert waits == [3.0]
    with pytest.raises(UnloadFailure, match="It is stuck"):
        make(Script(unload_failure="It is stuck.")).close()
