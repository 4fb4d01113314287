"""Probes if an output is the same alone, repeated, in a batch, and from a cache."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from node.engine.model.load import LoadedModel
from node.engine.probe.line import Line, ProbeSizes, timed
from node.engine.probe.runner import Divergence, ProbeOutput, Prompt, Runner, divergence, spec_of
from node.ipc.messages import EngineSpec

SECTION = "outputs"
NEAR_TIE_NATS = 0.1
"""Two tokens within this distance may swap ranks because of rounding."""
_CUT_SHARES = (0.1, 0.5, 1.0)


def prompt(length: int, seed: int) -> Prompt:
    """Returns meaningless tokens, the same on every machine."""
    return tuple(100 + (seed * 7919 + at * 104_729) % 20_000 for at in range(length))


def probe(model: LoadedModel, folder: Path, sizes: ProbeSizes) -> Iterator[Line]:
    same = _Same(model, prompt(sizes.prompt_tokens, 1), sizes.output_tokens)
    yield _line("repeated", same.alone)
    for rows in (2, 4, 8):
        yield _line(f"in a batch of {rows}", partial(same.batched, rows))
    for share in _CUT_SHARES:
        cut = min(int(share * sizes.prompt_tokens), sizes.prompt_tokens - 1)
        yield _line(f"cached up to {cut}", partial(same.cached, cut))
    yield _line("from disk", partial(same.from_disk, folder))


def _line(name: str, compare: Callable[[], Divergence]) -> Line:
    with timed() as took:
        found = compare()
        seconds = took()
    words = "the same tokens" if found.at is None else f"diverges at token {found.at}"
    return Line(
        SECTION,
        f"greedy output {name}",
        f"the same, or diverging where two tokens are within {NEAR_TIE_NATS} nats",
        f"{words}; gap there {found.gap:.3f} nats; log probabilities differ by up to "
        f"{found.shift:.2g} before",
        found.is_near_tie(NEAR_TIE_NATS),
        seconds,
    )


class _Same:
    """A prompt whose outputs are compared with the first one."""

    def __init__(self, model: LoadedModel, first_prompt: Prompt, count: int) -> None:
        self._model, self._prompt, self._count = model, first_prompt, count
        self._first = self._generate(spec_of(), [], [first_prompt])

    def alone(self) -> Divergence:
        return divergence(self._first, self._generate(spec_of(), [], [self._prompt]))

    def batched(self, rows: int) -> Divergence:
        length = len(self._prompt)
        others = [prompt(length - length * at // 10, at + 2) for at in range(rows - 1)]
        return divergence(self._first, self._generate(spec_of(), [], [self._prompt, *others]))

    def cached(self, cut: int) -> Divergence:
        return divergence(
            self._first, self._generate(spec_of(), [self._prompt[:cut]], [self._prompt])
        )

    def from_disk(self, folder: Path) -> Divergence:
        with tempfile.TemporaryDirectory() as home:
            spec = spec_of(str(folder), Path(home))
            # It spills its stored KV; the next engine begins with the disk alone.
            self._generate(spec, [], [self._prompt])
            output = self._generate(spec, [], [self._prompt])
        if output.usage is None or not output.usage.cached_tokens:
            return Divergence(0, float("inf"))
        return divergence(self._first, output)

    def _generate(
        self, spec: EngineSpec, before: list[Prompt], prompts: list[Prompt]
    ) -> ProbeOutput:
        """Returns the first prompt's output from a new engine that has processed `before`."""
        with Runner(self._model, spec) as runner:
            for each in before:
                runner.generate([each], 1)
            return runner.generate(prompts, self._count)[0]
