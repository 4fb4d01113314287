"""Probes MLX's view of the device, and that an allocation beyond the limit only raises an error."""

import sys
from collections.abc import Iterator
from importlib.metadata import version

import mlx.core as mx

from node.engine.probe.line import MIB, Line, not_measured, timed

SECTION = "device"
_FORMULA_SHARE = 0.02


def probe(working_set_bytes: int) -> Iterator[Line]:
    """`working_set_bytes` is the agent's estimate of the GPU's working set."""
    versions = f"mlx {version('mlx')}, mlx-lm {version('mlx-lm')}"
    yield Line(SECTION, "versions", "those of constraints.txt", versions, ok=True)
    device = str(mx.default_device())
    has_metal = mx.metal.is_available()
    if sys.platform != "darwin":
        yield not_measured(SECTION, "Metal", "the default device is the GPU", f"Linux, {device}")
    else:
        found = f"{device}, Metal {'there' if has_metal else 'missing'}"
        yield Line(SECTION, "Metal", "the default device is the GPU", found, has_metal)
    if not has_metal:
        why = "there is no Metal device"
        yield not_measured(SECTION, "limits of Metal", "reported", why)
        yield not_measured(SECTION, "working set", "within 2 % of the agent's formula", why)
        yield not_measured(SECTION, "one buffer too large", "refused; then all is well", why)
        return
    info = mx.device_info()
    reported = int(info.get("max_recommended_working_set_size", 0))
    limits = ", ".join(
        f"{name} {info[name]}" for name in ("resource_limit", "max_buffer_length") if name in info
    )
    yield Line(SECTION, "limits of Metal", "reported", limits or "none", bool(limits))
    off = abs(reported - working_set_bytes) / max(reported, 1)
    yield Line(
        SECTION,
        "working set",
        f"within {_FORMULA_SHARE:.0%} of the agent's formula",
        f"{reported // MIB} MiB reported, {working_set_bytes // MIB} MiB by the formula",
        off <= _FORMULA_SHARE,
    )
    yield _too_large(int(info.get("max_buffer_length", 0)))


def _too_large(most_bytes: int) -> Line:
    with timed() as took:
        try:
            mx.eval(mx.zeros((most_bytes + (1 << 20),), dtype=mx.uint8))
            outcome = "it was not refused"
        except (RuntimeError, ValueError) as error:
            outcome = f"refused ({type(error).__name__})"
        after = mx.sum(mx.ones((1024,))).item()
    ok = outcome.startswith("refused") and after == 1024
    return Line(SECTION, "one buffer too large", "refused; then all is well", outcome, ok, took())
