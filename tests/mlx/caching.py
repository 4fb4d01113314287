"""A tiny model of some kind, and greedy decoding with its caches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

from node.engine.kv.cache_layout import CacheLayout
from node.engine.kv.cache_tree import Caches, flatten
from node.engine.kv.codec import KvCodec, PlainCodec
from tests.mlx.kinds import make_kind
from tests.mlx.likeness import NEAR, Logits, assert_alike, tie_gap
from tests.mlx.tiny import VOCAB_SIZE


def prompt(length: int, seed: int = 3) -> list[int]:
    """Tokens that repeat only after a long time."""
    return [
        (position * 7919 + position // 5 * 31 + seed * 101) % VOCAB_SIZE
        for position in range(length)
    ]


@dataclass
class Subject:
    """A model and the layout of its caches."""

    network: Any
    layout: CacheLayout

    @classmethod
    def of(
        cls,
        folder: Path,
        *,
        codec: KvCodec | None = None,
        live_bits: int | None = None,
    ) -> "Subject":
        network, _ = load_model(folder)
        return cls(
            network,
            CacheLayout.probe(network, live_bits=live_bits, codec=codec or PlainCodec()),
        )

    def feed(self, caches: Caches, rows: Sequence[Sequence[int]]) -> mx.array:
        """Logits after the last token of each row."""
        logits: mx.array = self.network(mx.array([list(row) for row in rows]), cache=caches)[:, -1]
        mx.eval(logits, [leaf.state for leaf in flatten(caches)])
        return logits

    def decode(self, caches: Caches, logits: mx.array, count: int) -> list[list[int]]:
        """Greedy tokens of each row."""
        rows: list[list[int]] = [[] for _ in range(logits.shape[0])]
        for _ in range(count):
            chosen: Any = mx.argmax(logits, axis=-1).tolist()
            for row, token in zip(rows, chosen, strict=True):
                row.append(token)
            logits = self.feed(caches, [[token] for token in chosen])
        return rows

    def answer(self, tokens: Sequence[int], count: int, caches: Caches | None = None) -> list[int]:
        """Greedy tokens after a prompt that follows what the caches of one row hold."""
        caches = self.layout.new_caches() if caches is None else caches
        return self.decode(caches, self.feed(caches, [tokens]), count)[0]

    def assert_alike(
        self, tokens: Sequence[int], left: list[int], right: list[int], near: float = NEAR
    ) -> None:
        """That two answers to a prompt are the same; on a GPU, up to a near tie."""

        def logits_at(at: int) -> Logits:
            logits = self.feed(self.layout.new_caches(), [[*tokens, *left[:at]]])
            return np.array(logits[0].astype(mx.float32))

        assert_alike(left, right, logits_at, tie_gap, near)

    def batch(self, prompts: Sequence[Sequence[int]]) -> tuple[Caches, mx.array]:
        """Batch caches of prompts that were prefilled one by one, and the logits of each."""
        rows = [self.layout.new_caches() for _ in prompts]
        logits = [self.feed(caches, [p]) for caches, p in zip(rows, prompts, strict=True)]
        batch, logits_of_all = self.layout.merge(rows), mx.concatenate(logits)
        mx.eval(logits_of_all, [leaf.state for leaf in flatten(batch)])
        return batch, logits_of_all


def subjects(root: Path) -> Callable[..., Subject]:
    """Gives a kind of model; each is made once, and loaded once unless there are options."""
    loaded: dict[str, Subject] = {}

    def get(kind: str, **options: Any) -> Subject:
        folder = root / kind
        if not folder.exists():
            make_kind(kind, folder)
        if options:
            return Subject.of(folder, **options)
        if kind not in loaded:
            loaded[kind] = Subject.of(folder)
        return loaded[kind]

    return get
