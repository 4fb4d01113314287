"""Settings from options and environment, as several commands need them."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.engines.memory_budget import OVERHEAD_BYTES
from node.errors import NodeError, StartError
from node.hardware import this_kernel, why_unfit
from node.parsing.registry import (
    are_compatible,
    reasoning_name,
    reasoning_names,
    tool_call_name,
    tool_call_names,
)
from node.protocol.extra import INSTALL_EXTRA, WHERE
from node.protocol.template_kwargs import RESERVED_KWARGS
from node.setting_kinds import AUTO_BYTES
from node.settings import REASONING_FIELDS, WIRED, Settings, default_home, read_environment

EXTRA = (
    *("mlx", "mlx_lm", "transformers", "tokenizers", "safetensors", "numpy"),
    *("huggingface_hub", "psutil"),
)
"""Modules of the node extra, which the base install does without."""
ENGINES = ("text", "scripted")


class ExtraMissing(NodeError):
    """The node extra is not installed; run pip install '.[node]' in your clone of mlx-fleet."""

    code = "extra_missing"


def missing_extra() -> list[str]:
    """The modules of the node extra that are not installed."""
    return [name for name in EXTRA if importlib.util.find_spec(name) is None]


def need_extra() -> None:
    """Raises `ExtraMissing` if modules are missing, with the command that installs them, or if they
    cannot be installed on this machine, with the reason."""
    if reason := why_unfit(this_kernel()):
        raise ExtraMissing(reason)
    if missing := missing_extra():
        raise ExtraMissing(
            f"The node extra is not complete ({', '.join(missing)} missing); run {INSTALL_EXTRA} "
            f"{WHERE}."
        )


def read_settings(options: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the options that are given, then from the environment, then the defaults.
    Raises `StartError`."""
    given = {key: value for key, value in options.items() if value not in (None, ())}
    values: dict[str, Any] = {"home": default_home(environ), **read_environment(environ), **given}
    values["home"] = Path(values["home"]).expanduser()
    if values.get("kv_disk_bytes") == AUTO_BYTES:
        values["kv_disk_bytes"] = None
    settings = Settings(**values)
    for name, choices in _CHOICES.items():
        if getattr(settings, name) not in choices:
            raise StartError(
                f"{name} must be one of {', '.join(choices)}, not {getattr(settings, name)!r}."
            )
    _check_sizes(settings)
    _check_formats(settings)
    _check_template_kwargs(settings)
    if settings.script is not None and settings.engine != "scripted":
        raise StartError("script is for the scripted engine only; add --engine scripted.")
    if settings.wired != "off" and settings.engine == "scripted":
        raise StartError("wired is not for the scripted engine, which has no weights.")
    return settings


_TEXT_ONLY = (
    *("prefill_chunk_tokens", "decode_stall_target_ms", "kv_cache_bits", "kv_live_bits"),
    *("kv_snapshot_bytes", "kv_disk_bytes", "kv_disk_bytes_per_day"),
)
"""Settings that do not apply to the scripted engine, which has no KV."""


_CHOICES: dict[str, tuple[str, ...]] = {
    "engine": ENGINES,
    "wired": WIRED,
    "reasoning_field": REASONING_FIELDS,
}
_BOUNDS: dict[str, tuple[int, int | None]] = {
    "max_rows": (1, 256),
    "prefill_chunk_tokens": (16, 65_536),
    "decode_stall_target_ms": (10, 60_000),
    "memory_limit_bytes": (OVERHEAD_BYTES + 1, None),
    "kv_live_bytes": (1024**2, None),
    "kv_snapshot_bytes": (1, None),
    "responses_bytes": (1024**2, None),
}
"""Smallest and largest value of each setting."""


def _check_formats(settings: Settings) -> None:
    for key, known_name, names in (
        ("tool_parsers", tool_call_name, tool_call_names),
        ("reasoning_parsers", reasoning_name, reasoning_names),
    ):
        for _, name in getattr(settings, key):
            try:
                known_name(name)
            except KeyError:
                raise StartError(
                    f"{key} has no format {name!r}; there are {', '.join(names())}."
                ) from None
    _check_pairs(dict(settings.reasoning_parsers), dict(settings.tool_parsers))


def _check_template_kwargs(settings: Settings) -> None:
    for _, variables in settings.default_chat_template_kwargs:
        for name, value in variables.items():
            if name in RESERVED_KWARGS:
                raise StartError(
                    f"default_chat_template_kwargs: {name} is not a variable that can be set."
                )
            if value is None:
                raise StartError(
                    f"default_chat_template_kwargs: {name} is null; leave it out instead."
                )


def _check_pairs(reasoning: Mapping[str, str], tool_calls: Mapping[str, str]) -> None:
    """Raises `StartError` for formats that are set for the same models and do not go together."""
    for model in sorted({*reasoning, *tool_calls}):
        names = [given.get(model) or given.get("") for given in (reasoning, tool_calls)]
        if None not in names and not are_compatible(str(names[0]), str(names[1])):
            raise StartError(
                f"reasoning_parsers and tool_parsers name {names[0]!r} and {names[1]!r} "
                f"for {model or 'all models'}, which cannot be combined: a format of the "
                "whole output must be set for both, or for one alone."
            )


def _check_sizes(settings: Settings) -> None:
    for name, (least, most) in _BOUNDS.items():
        value = getattr(settings, name)
        if value is not None and value < least:
            raise StartError(f"{name} must be at least {least}, not {value}.")
        if value is not None and most is not None and value > most:
            raise StartError(f"{name} must be at most {most}, not {value}.")
    for name in ("kv_cache_bits", "kv_live_bits"):
        value = getattr(settings, name)
        if value not in (None, 4, 8):
            raise StartError(f"{name} must be 4 or 8, not {value}.")
    for name in _TEXT_ONLY:
        if settings.engine == "scripted" and getattr(settings, name) is not None:
            raise StartError(f"{name} is not for the scripted engine, which has no KV.")
