"""Keeps an agent's status of its models within the bounds of the protocol."""

import itertools
import logging
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from node.models.store import BrokenFolder
from node.protocol.bounds import MAX_MODELS, clipped
from node.protocol.messages import BrokenModel, ModelStatus
from node.protocol.names import is_name

logger = logging.getLogger(__name__)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ModelStatus).decode


class ModelFilter:
    """Leaves out models that no router would accept, since one of them would hide all others of its
    node. The log names each once."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def of(self, models: Iterable[ModelStatus]) -> tuple[ModelStatus, ...]:
        accepted = []
        for model in models:
            if model.reason is not None:
                model = replace(model, reason=clipped(model.reason))
            fault = _fault(model)
            if fault:
                self._report(model.name, fault)
            else:
                accepted.append(model)
        for model in accepted[MAX_MODELS:]:
            self._report(model.name, f"a node has at most {MAX_MODELS}")
        return tuple(accepted[:MAX_MODELS])

    def broken(self, folders: Iterable[BrokenFolder]) -> tuple[BrokenModel, ...]:
        """The broken models, at most as many as routers accept."""
        broken = (BrokenModel(each.name, clipped(each.reason)) for each in folders)
        return tuple(itertools.islice(broken, MAX_MODELS))

    def _report(self, name: str, fault: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            logger.warning("The model %r is not reported to routers: %s.", name, fault)


def _fault(model: ModelStatus) -> str:
    """The reason why no router would accept the model; empty if one would."""
    if not is_name(model.name):
        return "its name is empty, too long, or has unprintable characters"
    try:
        _decode(_encode(model))
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError) as error:
        return str(error)
    return ""
