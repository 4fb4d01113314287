"""Probes the prefill speed for several chunk sizes and depths."""

from collections.abc import Iterator

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from node.engine.model.load import LoadedModel
from node.engine.probe.line import Line, ProbeSizes, timed
from node.engine.probe.outputs import prompt

SECTION = "speeds"
_LONGEST_S = 1.0
"""macOS ends a GPU command that blocks the display."""


def probe(model: LoadedModel, sizes: ProbeSizes, *, has_gpu: bool) -> Iterator[Line]:
    caches = make_prompt_cache(model.network)
    depth = 0
    for until in sizes.depths:
        while depth < until:
            depth += _run(model, caches, min(sizes.chunks[-1], until - depth))
        for chunk in sizes.chunks:
            with timed() as took:
                depth += _run(model, caches, chunk)
                seconds = took()
            yield Line(
                SECTION,
                f"prefill of {chunk} tokens at a depth of about {until}",
                f"at most {_LONGEST_S:g} s on a GPU",
                f"{seconds:.2f} s, {chunk / seconds:.0f} tokens/s",
                seconds <= _LONGEST_S if has_gpu else None,
                seconds,
            )


def _run(model: LoadedModel, caches: list[object], count: int) -> int:
    tokens = mx.array([prompt(count, 5)])
    model.network(tokens, cache=caches)
    mx.eval([cache.state for cache in caches])  # type: ignore[attr-defined]
    return count
