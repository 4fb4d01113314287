"""Settings from options, environment and file, as several commands need them."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.errors import NodeError, StartError
from node.hardware import Machine, disk_bytes, read_machine, this_kernel, why_unfit
from node.parsing.registry import (
    are_compatible,
    reasoning_name,
    reasoning_names,
    tool_call_name,
    tool_call_names,
)
from node.protocol.extra import INSTALL_EXTRA, WHERE
from node.protocol.template_kwargs import RESERVED_KWARGS
from node.setting_kinds import AUTO_BYTES, SizeShare
from node.settings import Settings, sources
from serving.setting import BadSetting
from serving.setting_sources import Gathered, Sources

EXTRA = (
    *("mlx", "mlx_lm", "transformers", "tokenizers", "safetensors", "numpy"),
    *("huggingface_hub", "psutil"),
)
"""Modules of the node extra, which the base install does without."""


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
    """Settings from the options that are given, then from the environment, the file and the
    defaults. Raises `StartError`."""
    return valid_settings(sources(options, environ))


def valid_settings(given: Sources) -> Settings:
    """The settings from these sources. Raises `StartError`."""
    gathered = given.gather()
    try:
        gathered.need_valid()
    except BadSetting as error:
        raise StartError(str(error)) from None
    settings = settings_from(gathered)
    if problems := start_problems(settings):
        raise StartError(problems[0])
    return settings


def settings_from(gathered: Gathered) -> Settings:
    """The settings with their sizes in bytes."""
    values = {name: each.value for name, each in gathered.values.items()}
    values["home"] = Path(values["home"]).expanduser()
    if values["kv_disk_bytes"] == AUTO_BYTES:
        values["kv_disk_bytes"] = None
    if any(isinstance(value, SizeShare) for value in values.values()):
        values |= _sizes(values, read_machine(this_kernel()))
    return Settings(**values)


def _sizes(values: Mapping[str, Any], machine: Machine) -> dict[str, int]:
    """The sizes that are given as shares, in bytes."""
    memory = values["memory_limit_bytes"]
    limit_bytes = memory.of(machine.memory_bytes) if isinstance(memory, SizeShare) else memory
    if limit_bytes is None:
        limit_bytes = machine.default_limit_bytes
    wholes = {
        "memory_limit_bytes": machine.memory_bytes,
        "kv_live_bytes": limit_bytes,
        "kv_cache_bytes": limit_bytes,
        "kv_disk_bytes": disk_bytes(values["home"]),
    }
    return {
        name: values[name].of(whole_bytes)
        for name, whole_bytes in wholes.items()
        if isinstance(values[name], SizeShare)
    }


def start_problems(settings: Settings) -> list[str]:
    """Sentences about what stops the start although each value is one."""
    problems = []
    for check in (_check_engine, _check_formats, _check_template_kwargs):
        try:
            check(settings)
        except StartError as error:
            problems.append(error.message)
    return problems


_TEXT_ONLY = (
    *("prefill_chunk_tokens", "decode_stall_target_ms", "kv_cache_bits", "kv_live_bits"),
    *("kv_snapshot_bytes", "kv_disk_bytes", "kv_disk_bytes_per_day"),
)
"""Settings that do not apply to the scripted engine, which has no KV."""


def _check_engine(settings: Settings) -> None:
    """Raises `StartError` for settings of another engine than the one that is set."""
    if settings.engine != "scripted":
        if settings.script is not None:
            raise StartError("script is for the scripted engine only; add --engine scripted.")
        return
    if settings.wired != "off":
        raise StartError("wired is not for the scripted engine, which has no weights.")
    for name in _TEXT_ONLY:
        if getattr(settings, name) is not None:
            raise StartError(f"{name} is not for the scripted engine, which has no KV.")


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
