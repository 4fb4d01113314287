"""The load under which Macs have panicked: two streams of long prompts, and stored KV that is
constantly replaced. No memory is wired."""

import time
from collections.abc import Iterator

import msgspec

from node.engine.model.load import LoadedModel
from node.engine.probe.line import Line
from node.engine.probe.outputs import prompt
from node.engine.probe.runner import Runner, spec_of
from node.ipc.messages import MemoryLease

SECTION = "soak"
_LENGTHS = (6_000, 7_500)
"""Lengths for the context of a small model; those for large ones would be twice as long."""
_STORED_BYTES = 256 << 20
"""Room for one of the prompts: the other's KV is evicted each time."""


def probe(model: LoadedModel, minutes: float) -> Iterator[Line]:
    spec = spec_of(rows=2)
    lease = MemoryLease(0, spec.lease.live_kv_bytes, _STORED_BYTES, spec.lease.overhead_bytes)
    began_s = time.monotonic()
    rounds = 0
    with Runner(model, msgspec.structs.replace(spec, lease=lease)) as runner:
        while time.monotonic() - began_s < minutes * 60:
            longest = max(model.context_tokens - 200, 64)
            seeds = (rounds * len(_LENGTHS) + at for at in range(len(_LENGTHS)))
            runner.generate(
                [
                    prompt(min(length, longest), seed)
                    for length, seed in zip(_LENGTHS, seeds, strict=True)
                ],
                64,
            )
            rounds += 1
    took_s = time.monotonic() - began_s
    found = f"{rounds} rounds of two prompts, and the machine is still up"
    yield Line(SECTION, f"{minutes:g} minutes of load", "no panic", found, ok=True, took_s=took_s)
