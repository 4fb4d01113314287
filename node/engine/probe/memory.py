"""Probes load times, the memory of a model in each phase, and the memory freed at its end."""

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx

from node.engine.model.load import LoadedModel, load_folder
from node.engine.probe.line import MIB, Line, ProbeSizes, measured, timed
from node.engine.probe.outputs import prompt
from node.engine.probe.runner import Runner, spec_of

SECTION = "memory"
_GIVEN_BACK = 0.95
_CACHE_LIMITS_GIB = (0.5, 2, 8)


def probe(folder: Path, sizes: ProbeSizes, footprint: Callable[[], int]) -> Iterator[Line]:
    """`footprint` returns the bytes that the system counts for this process."""
    before_bytes = footprint()
    with timed() as took:
        model = load_folder(folder, lambda _done: None)
        loaded_s = took()
    yield measured(SECTION, "load", f"{model.weight_bytes // MIB} MiB", loaded_s)
    with Runner(model, spec_of()) as runner:
        with timed() as took:
            runner.warm_up()
            first_s = took()
        yield measured(SECTION, "first pass of each kind", f"{first_s:.2f} s", first_s)
        yield from _phases(runner, sizes, footprint)
    yield from _cache_limits(model, sizes)
    held_bytes = footprint()
    del runner, model
    yield _given_back(before_bytes, held_bytes, footprint)
    with timed() as took:
        load_folder(folder, lambda _done: None)
        second_s = took()
    yield measured(SECTION, "second load", f"{second_s:.2f} s", second_s)


def _phases(runner: Runner, sizes: ProbeSizes, footprint: Callable[[], int]) -> Iterator[Line]:
    for name, prompts in (
        ("8 rows", [prompt(sizes.prompt_tokens // 2, seed) for seed in range(8)]),
        (f"a prompt of {sizes.long_tokens} tokens", [prompt(sizes.long_tokens, 9)]),
    ):
        with timed() as took:
            runner.generate(prompts, 16)
            seconds = took()
        found = (
            f"{footprint() // MIB} MiB of the process, {mx.get_active_memory() // MIB} MiB in use, "
            f"{mx.get_cache_memory() // MIB} MiB kept for reuse"
        )
        yield measured(SECTION, f"memory with {name}", found, seconds)


def _cache_limits(model: LoadedModel, sizes: ProbeSizes) -> Iterator[Line]:
    count = sizes.long_tokens // 2
    for limit_gib in _CACHE_LIMITS_GIB:
        with Runner(model, spec_of()) as runner:
            # Overrides the engine's own limit.
            before_bytes = mx.set_cache_limit(int(limit_gib * (1 << 30)))
            with timed() as took:
                runner.generate([prompt(count, int(limit_gib * 2))], 1)
                seconds = took()
            mx.set_cache_limit(before_bytes)
        name = f"prefill with {limit_gib:g} GiB of buffers kept for reuse"
        found = f"{count / seconds:.0f} tokens/s"
        yield measured(SECTION, name, found, seconds)


def _given_back(before_bytes: int, held_bytes: int, footprint: Callable[[], int]) -> Line:
    with timed() as took:
        while True:
            gc.collect()
            mx.clear_cache()
            share = (held_bytes - footprint()) / max(held_bytes - before_bytes, 1)
            if share >= _GIVEN_BACK or took() > 2.0:
                break
            time.sleep(0.05)
    return Line(
        SECTION,
        "given back after the unload",
        f"{_GIVEN_BACK:.0%} within 2 s",
        f"{share:.0%} after {took():.1f} s",
        share >= _GIVEN_BACK if mx.metal.is_available() else None,
        took(),
    )
