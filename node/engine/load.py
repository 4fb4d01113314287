"""Loads the engine of a text model."""

from collections.abc import Callable
from pathlib import Path

from node.engine.base import ignore_long_step
from node.engine.model.device import release_thread, wire
from node.engine.model.load import load_folder
from node.engine.scheduling.disk_cache import begin_identity
from node.engine.scheduling.engine import TextEngine
from node.ipc.messages import EngineSpec


def load(
    spec: EngineSpec,
    progress: Callable[[float], None],
    on_long_step: Callable[[float], None] = ignore_long_step,
) -> TextEngine:
    """Implements `EngineFactory` for text models. Raises `LoadError`."""
    try:
        if spec.wired == "weights":
            # Before the weights are loaded, so that they fill the wired limit and KV, which is
            # allocated and freed all the time, stays outside it.
            wire(spec.lease.weight_bytes)
        made = begin_identity(spec)
        engine = TextEngine(load_folder(Path(spec.folder), progress), spec, made, on_long_step)
        if spec.warm_up:
            engine.warm_up()
        return engine
    except BaseException:
        release_thread()
        raise
