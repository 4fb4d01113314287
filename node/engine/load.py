"""How the engine of a text model comes to be."""

from collections.abc import Callable
from pathlib import Path

from node.engine.model.device import leave_thread, wire
from node.engine.model.load import load_folder
from node.engine.scheduling.disk_cache import begin_identity
from node.engine.scheduling.engine import TextEngine
from node.ipc.messages import EngineSpec


def load(spec: EngineSpec, progress: Callable[[float], None]) -> TextEngine:
    """The `EngineFactory` of text models. Raises `LoadError`."""
    try:
        if spec.wired == "weights":
            # Before the weights, which are then what fills the limit; KV, which comes and goes,
            # stays outside.
            wire(spec.lease.weight_bytes)
        made = begin_identity(spec)
        engine = TextEngine(load_folder(Path(spec.folder), progress), spec, made)
        if spec.warm_up:
            engine.warm_up()
        return engine
    except BaseException:
        leave_thread()
        raise
