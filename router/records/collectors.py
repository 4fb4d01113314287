"""Prometheus collectors that the event loop alone writes. Those of `prometheus_client` lock at each
count and observation, which takes longer than hashing the prompt of a small request."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from router.types import Tokens

Values = Iterable[tuple[tuple[str, ...], float]]
"""Pairs of label values and a figure."""
Family = GaugeMetricFamily | CounterMetricFamily
OTHERS = "others"
"""Label of all keys beyond the number that is kept apart."""


class Figures(Collector):
    """Gauges and counters of other owners, read at each scrape."""

    def __init__(self) -> None:
        self._read: list[tuple[Callable[[], Family], Callable[[], Values]]] = []

    def add(self, family: Callable[[], Family], read: Callable[[], Values]) -> None:
        """Adds a metric; `family` makes an empty one, `read` its values."""
        self._read.append((family, read))

    def collect(self) -> Iterator[Metric]:
        for empty, read in self._read:
            family = empty()
            for values, figure in read():
                family.add_metric(values, figure)
            yield family


class LabeledCounter(Collector):
    """A counter for each tuple of labels."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str]) -> None:
        self._name = name
        self._meaning = meaning
        self._labels = labels
        self._counts: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, count: float = 1) -> None:
        self._counts[labels] = self._counts.get(labels, 0) + count

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._meaning, labels=self._labels)
        for labels, count in self._counts.items():
            family.add_metric(labels, count)
        yield family


class LabeledHistogram(Collector):
    """A histogram for each tuple of labels."""

    def __init__(
        self, name: str, meaning: str, bounds: Sequence[float], labels: Sequence[str]
    ) -> None:
        """`bounds` are the upper bounds of the buckets, without the infinite one."""
        self._name = name
        self._meaning = meaning
        self._labels = labels
        self._bounds = tuple(bounds)
        self._ends = [*map(floatToGoString, bounds), "+Inf"]
        self._counts: dict[tuple[str, ...], list[float]] = {}
        """Observations by bucket, and their sum."""

    def observe(self, value: float, *labels: str) -> None:
        counts = self._counts.get(labels)
        if counts is None:
            counts = self._counts[labels] = [0.0] * (len(self._ends) + 1)
        counts[bisect_left(self._bounds, value)] += 1.0
        counts[-1] += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._meaning, labels=self._labels)
        for labels, (*counts, total) in self._counts.items():
            family.add_metric(labels, list(zip(self._ends, accumulate(counts), strict=True)), total)
            if self._bounds[0] < 0:  # of values below zero the family exposes buckets alone
                named = dict(zip(self._labels, labels, strict=True))
                family.add_sample(f"{self._name}_count", named, sum(counts))
        yield family


class TokenCounter(Collector):
    """Counts tokens by model, key and kind."""

    def __init__(self, name: str, meaning: str, most_series: int) -> None:
        """From `most_series` pairs of model and key on, new ones are counted as `OTHERS`."""
        self._name = name
        self._meaning = meaning
        self._most_series = most_series
        self._counts: dict[tuple[str, str], list[int]] = {}

    def add(self, model: str, key: str, tokens: Tokens) -> None:
        counts = self._counts.get((model, key)) or self._begin(model, key)
        counts[0] += tokens.prompt
        counts[1] += tokens.cached
        counts[2] += tokens.completion
        counts[3] += tokens.reasoning

    def _begin(self, model: str, key: str) -> list[int]:
        label = key if len(self._counts) < self._most_series else OTHERS
        return self._counts.setdefault((model, label), [0] * len(Tokens._fields))

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self._name, self._meaning, labels=("model", "key", "kind"))
        for (model, key), counts in self._counts.items():
            for kind, count in zip(Tokens._fields, counts, strict=True):
                family.add_metric((model, key, kind), count)
        yield family
