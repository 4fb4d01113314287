"""The lists of models that Ollama's clients read, the same from router and agent."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec

from node.protocol.messages import ModelState, ModelStatus
from node.protocol.models import ModelCard
from node.protocol.ollama.json_lines import spelled

API_VERSION = "0.12.11"
"""Version of Ollama whose API this is. Clients refuse to work with older ones."""
_LATEST = ":latest"
_CAPABILITIES = {"reasoning": "thinking"}
"""Ollama's words for our capabilities, where they differ."""
_LOADED = (ModelState.READY, ModelState.DRAINING)
_FORMAT = "safetensors"
_NEVER = datetime(2318, 1, 1, tzinfo=UTC)
"""The time at which a model is unloaded that never is."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """A model under the name that clients choose it by."""

    card: ModelCard
    statuses: Sequence[ModelStatus]
    """One for each node that has it; at least one."""

    @property
    def loaded(self) -> list[ModelStatus]:
        """The statuses of nodes that report to have it in memory."""
        return [each for each in self.statuses if each.state in _LOADED and each.weight_bytes]

    @property
    def facts(self) -> ModelStatus:
        """The status that says the most about the model's files."""
        return max(self.statuses, key=lambda each: (bool(each.family), each.disk_bytes))


def tagged(name: str) -> str:
    """Returns the name as lists show it: clients add the tag to a name without one, and search the
    list for that."""
    return name if ":" in name else name + _LATEST


def untagged(name: str, is_known: Callable[[str], bool]) -> str:
    """Returns the known name that a client means by a name with or without the tag; the name itself
    if none is known."""
    if is_known(name):
        return name
    short = name.removesuffix(_LATEST)
    other = short if short != name else tagged(name)
    return other if is_known(other) else name


def tags_body(models: Iterable[OllamaModel], modified_s: float) -> bytes:
    """Returns the response of `/api/tags`; `modified_s` is Unix time."""
    listed = [
        {
            **_named(each),
            "modified_at": _time(modified_s),
            "size": each.facts.disk_bytes or each.facts.weight_bytes,
        }
        for each in models
    ]
    return _encode({"models": listed})


def ps_body(models: Iterable[OllamaModel], now_s: float) -> bytes:
    """Returns the response of `/api/ps`, the loaded models; `now_s` is Unix time."""
    listed = [
        {
            **_named(each),
            **_sizes(each.loaded),
            "expires_at": _expires(each.loaded, now_s),
            "context_length": each.card.context_tokens or 0,
        }
        for each in models
        if each.loaded
    ]
    return _encode({"models": listed})


def show_body(model: OllamaModel, modified_s: float) -> bytes:
    """Returns the response of `/api/show`; `modified_s` is Unix time."""
    facts, card = model.facts, model.card
    family = facts.family or "unknown"
    info: dict[str, Any] = {"general.architecture": family, "general.basename": card.name}
    if facts.parameters:
        info["general.parameter_count"] = facts.parameters
    if card.context_tokens:
        info[f"{family}.context_length"] = card.context_tokens
    capabilities = [_CAPABILITIES.get(each, each) for each in card.capabilities]
    return _encode(
        {
            "license": "",
            "modelfile": "# Served by mlx-fleet, which has no Modelfiles.\n",
            "parameters": "",
            "template": "",
            "details": _details(facts),
            "model_info": info,
            "capabilities": capabilities or ["completion"],
            "modified_at": _time(modified_s),
        }
    )


def version_body(own_version: str) -> bytes:
    """Returns the response of `/api/version`."""
    return _encode({"version": API_VERSION, "mlx_fleet": own_version})


def _named(model: OllamaModel) -> dict[str, Any]:
    name = tagged(model.card.name)
    digest = _digest(model.facts)
    return {"name": name, "model": name, "digest": digest, "details": _details(model.facts)}


def _sizes(loaded: Sequence[ModelStatus]) -> dict[str, int]:
    size_bytes = max(each.memory_bytes or each.weight_bytes for each in loaded)
    return {"size": size_bytes, "size_vram": size_bytes}


def _expires(loaded: Sequence[ModelStatus], now_s: float) -> str:
    """Returns the time at which the last node will unload the model if it stays idle."""
    left_s = max(
        math.inf
        if each.pinned or each.keep_alive_s is None
        else max(0.0, each.keep_alive_s - (each.idle_s or 0.0))
        for each in loaded
    )
    return spelled(_NEVER) if left_s == math.inf else _time(now_s + left_s)


def _details(status: ModelStatus) -> Mapping[str, Any]:
    return {
        "parent_model": "",
        "format": _FORMAT if status.weight_bytes else "",
        "family": status.family,
        "families": [status.family] if status.family else None,
        "parameter_size": _count(status.parameters),
        "quantization_level": status.quantization,
    }


def _count(parameters: int) -> str:
    if not parameters:
        return ""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.4g}{unit}"
    return str(parameters)


def _digest(status: ModelStatus) -> str:
    """Returns a hash of the model's name and size; nodes do not report that of its files."""
    return sha256(f"{status.name} {status.disk_bytes}".encode(errors="replace")).hexdigest()


def _time(unix_s: float) -> str:
    return spelled(datetime.fromtimestamp(unix_s, UTC))
