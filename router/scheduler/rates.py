"""Learned speeds of nodes, and the guesses that stand in for them before.

Means are exponentially weighted; a prior counts as one sample.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from node.protocol.messages import DepthSpeed, Finished, ModelSpeed, ModelStatus, NodeStatus
from router.scheduler.chip_bandwidth import bandwidth_bytes_per_s, is_known
from router.types import Lease

LEARNING_RATE = 0.2
"""Weight of the newest sample, once there are several."""
DEPTH_BEGINS = (0, 4_096, 16_384, 65_536)
"""Prompt tokens at which the depth classes begin: prefill slows down with depth."""
DEPTH_SLOWNESS = (1.0, 1.15, 1.6, 3.0)
"""Assumed seconds per token in each depth class, relative to the first one."""
PREFILL_PER_PASS = 10.0
"""Tokens prefilled in the time that the chip takes to read the weights once. Cautious for Apple
chips, where arithmetic bounds prefill, which grows about as the bandwidth does."""
UNKNOWN_WEIGHT_BYTES = 4e9
"""Weights assumed for a model whose node does not report them."""
ROW_SLOWDOWN = 0.05
"""Assumed share of a one-row decode step that each further row adds to the step."""
RESTORE_BYTES_PER_S = 1.5e9
LOAD_BYTES_PER_S = 1e9
"""Assumed speed of reading weights from an SSD, cautious for Apple laptops."""
LOAD_FIXED_S = 3.0
"""Seconds to start an engine process."""
PRIOR_SERVICE_S = 2.0
"""Assumed seconds of a request before any has been seen."""
TOKENS_PER_BYTE = 0.25
MIN_TOKENS_PER_BYTE, MAX_TOKENS_PER_BYTE = 0.02, 1.5
"""Bounds of what is learned. A token rarely has more than 50 bytes, and where each byte is a token
the template adds only some. One image, or a long template around a short prompt, would give other
values, which do not apply to the next prompt."""
OUTPUT_TOKENS = 200.0
MIN_SAMPLE_TOKENS = 64
"""Smaller prefills show a request's fixed cost rather than the speed of prefill."""

SURE_SAMPLES = 3
"""Prefills after which a node's error of its guess applies to the model's other nodes. A speed that
the node itself reports counts as so many samples."""
MAX_GUESS_ERROR = 100.0
"""A reported speed is limited to this factor around the guess. A mixture of experts reads a small
share of its weights, and a CPU is slow, but a report alone must neither exclude a node nor make it
attract all requests."""


@dataclass(slots=True)
class Mean:
    value: float
    samples: int = 0

    def learn(self, sample: float, share: float = 1.0) -> None:
        """Adds a sample, with less weight if only a `share` of it belongs here."""
        self.samples += 1
        weight = max(LEARNING_RATE, 1.0 / (self.samples + 1))
        self.value += weight * share * (sample - self.value)


class PrefillRate:
    """Seconds per prompt token by depth."""

    def __init__(self, token_s: float) -> None:
        self._prior = tuple(token_s * slowness for slowness in DEPTH_SLOWNESS)
        self._learned: dict[int, Mean] = {}
        self._token_s = list(self._prior)
        self._until_s = _until(self._token_s)
        """Seconds of all tokens before each depth class."""

    @property
    def token_s(self) -> float:
        """Seconds of a token at a prompt's beginning."""
        return self._token_s[0]

    def seconds(self, begin: float, end: float) -> float:
        """Seconds to prefill the prompt's tokens from `begin` to `end`."""
        return self._from_start(end) - self._from_start(begin) if end > begin else 0.0

    def learn(self, begin: float, end: float, seconds: float) -> None:
        """Learns that the tokens from `begin` to `end` took so many seconds."""
        expected_s = self.seconds(begin, end)
        if end - begin < MIN_SAMPLE_TOKENS or seconds <= 0.0 or expected_s <= 0.0:
            return
        factor = seconds / expected_s
        for depth, tokens in _shares(begin, end):
            mean = self._learned.setdefault(depth, Mean(self._token_s[depth]))
            mean.learn(self._token_s[depth] * factor, tokens / (end - begin))
        self._spread()

    def _spread(self) -> None:
        """Scales the classes without samples by the nearest class's error of its guess."""
        for depth in range(len(DEPTH_BEGINS)):
            nearest = min(self._learned, key=lambda each: abs(each - depth))
            ratio = self._prior[depth] / self._prior[nearest]
            self._token_s[depth] = self._learned[nearest].value * ratio
        self._until_s = _until(self._token_s)

    def set_reported(self, speeds: Sequence[DepthSpeed]) -> None:
        """Sets the speeds that the node reports, instead of earlier reports. Only before requests
        have taught any."""
        self._learned = {
            depth: Mean(_bounded(token_s, self._prior[depth]), SURE_SAMPLES)
            for depth, token_s in _by_depth(speeds)
        }
        if self._learned:
            self._spread()

    @property
    def is_learned(self) -> bool:
        return bool(self._learned)

    def guess_error(self) -> float | None:
        """Learned over guessed seconds per token; None before there are enough samples."""
        if sum(mean.samples for mean in self._learned.values()) < SURE_SAMPLES:
            return None
        return fmean(mean.value / self._prior[depth] for depth, mean in self._learned.items())

    def scale_guess(self, guess_error: float) -> None:
        """Sets a node without samples to its guess times the error of other nodes' guesses."""
        self._token_s = [guess_error * each_s for each_s in self._prior]
        self._until_s = _until(self._token_s)

    def _from_start(self, tokens: float) -> float:
        depth = bisect_right(DEPTH_BEGINS, tokens) - 1
        return self._until_s[depth] + (tokens - DEPTH_BEGINS[depth]) * self._token_s[depth]


def _until(token_s: Sequence[float]) -> list[float]:
    spans = zip(DEPTH_BEGINS[:-1], DEPTH_BEGINS[1:], token_s[:-1], strict=True)
    return [0.0, *accumulate((end - begin) * each_s for begin, end, each_s in spans)]


def _shares(begin: float, end: float) -> list[tuple[int, float]]:
    """Tokens from `begin` to `end` by depth class."""
    ends = (*DEPTH_BEGINS[1:], float("inf"))
    spans = (
        (depth, min(end, until) - max(begin, since))
        for depth, (since, until) in enumerate(zip(DEPTH_BEGINS, ends, strict=True))
    )
    return [(depth, tokens) for depth, tokens in spans if tokens > 0]


def _by_depth(speeds: Sequence[DepthSpeed]) -> Iterator[tuple[int, float]]:
    """Mean seconds per token in each depth class in which a reported speed begins."""
    begins = sorted({each.depth_tokens: each.tokens_per_s for each in speeds}.items())
    found: dict[int, list[float]] = {}
    for begin, tokens_per_s in begins:
        depth = bisect_right(DEPTH_BEGINS, begin) - 1
        found.setdefault(depth, []).append(1.0 / tokens_per_s)
    return ((depth, fmean(each_s)) for depth, each_s in found.items())


def _bounded(reported_s: float, guessed_s: float) -> float:
    return min(MAX_GUESS_ERROR * guessed_s, max(guessed_s / MAX_GUESS_ERROR, reported_s))


class NodeRates:
    """Speeds of one model on one node. The guesses of nodes in the same `hardware_group` have
    similar errors; the empty group has no other nodes."""

    def __init__(self, status: NodeStatus, model: ModelStatus) -> None:
        weight_bytes = model.weight_bytes or UNKNOWN_WEIGHT_BYTES
        pass_s = weight_bytes / bandwidth_bytes_per_s(status.chip)
        self.hardware_group = _hardware_group(status.chip)
        self.prefill = PrefillRate(pass_s / PREFILL_PER_PASS)
        self.load_s = Mean(LOAD_FIXED_S + model.weight_bytes / LOAD_BYTES_PER_S)
        self.row_step_s = Mean(pass_s)
        """Seconds of a decode step for one row."""
        self.service_s = Mean(PRIOR_SERVICE_S)
        """Seconds from grant to end."""
        self._step_guess_s = pass_s
        self._reported: ModelSpeed | None = None
        self._is_prefill_learned = self._is_decode_learned = False
        """True once requests of this router have shown the speed."""

    def apply_reported(self, speed: ModelSpeed | None) -> bool:
        """Applies the speed that the node reports, as far as requests have not shown it. Returns
        True if that changes something."""
        is_known = self._is_prefill_learned and self._is_decode_learned
        if is_known or speed is None or speed == self._reported:
            return False
        self._reported = speed
        if not self._is_prefill_learned:
            self.prefill.set_reported(speed.prefill)
        if not self._is_decode_learned and speed.step_s is not None:
            step_s = speed.step_s / (1.0 + ROW_SLOWDOWN * (speed.step_rows - 1))
            self.row_step_s = Mean(_bounded(step_s, self._step_guess_s), SURE_SAMPLES)
        return True

    def decode_interference_s(self, rows: int, output_tokens: float) -> float:
        """Seconds lost by decoding beside so many rows: the new row waits for them in each step,
        and they wait for it during the half of their responses that is still to come on average."""
        return 1.5 * rows * ROW_SLOWDOWN * self.row_step_s.value * output_tokens

    def restore_s(self, tokens: float, model: ModelStatus) -> float:
        bytes_per_token = model.cache.bytes_per_token if model.cache else 0
        return tokens * bytes_per_token / RESTORE_BYTES_PER_S

    def learn(self, usage: Finished, rows: int) -> None:
        """Learns from the usage record of a request that decoded beside `rows` others."""
        if usage.prompt_tokens - usage.cached_tokens >= MIN_SAMPLE_TOKENS:
            self.learn_prefill(usage.cached_tokens, usage.prompt_tokens, usage.prefill_s)
        if usage.completion_tokens > 1 and usage.decode_s > 0.0:
            self.learn_decode(usage.decode_s, usage.completion_tokens - 1, rows)

    def learn_prefill(self, begin: float, end: float, seconds: float) -> None:
        """Learns that the tokens between two depths took so many seconds."""
        self._is_prefill_learned = True
        self.prefill.learn(begin, end, seconds)

    def learn_decode(self, seconds: float, tokens: float, rows: int) -> None:
        """Learns that so many output tokens took so many seconds beside `rows` others."""
        self._is_decode_learned = True
        self.row_step_s.learn(seconds / tokens / (1.0 + ROW_SLOWDOWN * rows))


def _hardware_group(chip: str) -> str:
    """Macs differ from their chips' guesses by similar factors, and all servers that report no chip
    have the same guess."""
    if not chip:
        return "silent"
    return "Apple" if is_known(chip) else ""


def tokens_per_byte(tokens: float, size_bytes: int) -> float:
    """A prompt's ratio, within the bounds that apply to other prompts."""
    return min(MAX_TOKENS_PER_BYTE, max(MIN_TOKENS_PER_BYTE, tokens / size_bytes))


@dataclass(slots=True)
class ModelAverages:
    """Learned properties of one model's prompts and responses, the same on every node."""

    tokens_per_byte: Mean
    """Prompt tokens per byte of the chain."""
    output_tokens: Mean

    @classmethod
    def unknown(cls) -> "ModelAverages":
        return cls(Mean(TOKENS_PER_BYTE), Mean(OUTPUT_TOKENS))

    def learn(self, prompt_bytes: int, usage: Finished) -> None:
        """Learns from a usage record; `prompt_bytes` is the size of the whole prompt's chain, 0 if
        unknown."""
        if prompt_bytes and usage.prompt_tokens >= MIN_SAMPLE_TOKENS:
            self.tokens_per_byte.learn(tokens_per_byte(usage.prompt_tokens, prompt_bytes))
        self.output_tokens.learn(usage.completion_tokens)


class Rates:
    """Owner of all learned speeds and averages."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, NodeRates]] = {}
        self._models: dict[str, ModelAverages] = {}

    def of(self, status: NodeStatus, node_id: str, model: ModelStatus) -> NodeRates:
        models = self._nodes.setdefault(node_id, {})
        rates = models.get(model.name)
        if rates is None:
            rates = models[model.name] = NodeRates(status, model)
            rates.apply_reported(model.speed)
            self._scale_guesses(model.name, rates.hardware_group)
        elif rates.apply_reported(model.speed):
            self._scale_guesses(model.name, rates.hardware_group)
        return rates

    def learn(self, lease: Lease, usage: Finished, rows: int) -> None:
        """Learns from the usage record of a lease that decoded beside `rows` others."""
        rates = self.known(lease.node_id, lease.model)
        if rates is not None:
            rates.learn(usage, rows)
            self._scale_guesses(lease.model, rates.hardware_group)

    def learn_prefill(self, lease: Lease, begin: float, end: float, seconds: float) -> None:
        """Learns that the lease's tokens between two depths took so many seconds."""
        rates = self.known(lease.node_id, lease.model)
        if rates is not None:
            rates.learn_prefill(begin, end, seconds)
            self._scale_guesses(lease.model, rates.hardware_group)

    def known(self, node_id: str, model: str) -> NodeRates | None:
        return self._nodes.get(node_id, {}).get(model)

    def averages(self, model: str) -> ModelAverages:
        averages = self._models.get(model)
        if averages is None:
            averages = self._models[model] = ModelAverages.unknown()
        return averages

    def forget_node(self, node_id: str) -> None:
        self._nodes.pop(node_id, None)

    def _scale_guesses(self, model: str, hardware_group: str) -> None:
        """Scales the guesses of the group's nodes that have not served the model by the median
        error of those that have. Otherwise nodes whose guess is too slow would never be tried."""
        if not hardware_group:
            return
        rates = (models[model] for models in self._nodes.values() if model in models)
        known = [each.prefill for each in rates if each.hardware_group == hardware_group]
        untried = [each for each in known if not each.is_learned]
        if not untried:
            return
        errors = [guess_error for each in known if (guess_error := each.guess_error()) is not None]
        for each in untried if errors else ():
            each.scale_guess(median(errors))
