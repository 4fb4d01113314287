"""Opens a model's disk tier and names its folder.

The name is the model's fingerprint; computing it reads all of the weights. That happens once, in a
thread of the lowest priority, while the tier is already in use: it starts empty in a folder with a
temporary name, which is renamed when the fingerprint is known.
"""

import contextlib
import logging
import os
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from node.engine.base import LoadError
from node.engine.cache.disk.folder import TierBusy, TierUnavailable
from node.engine.cache.disk.home import claim, name_folder, unnamed
from node.engine.cache.disk.limits import Limits
from node.engine.cache.disk.shared import TierDependencies
from node.engine.cache.disk.tier import SsdTier, open_tier
from node.engine.kv.spans import array_memory
from node.engine.model.fingerprint import ModelTexts
from node.engine.model.weight_hashes import WeightHashes
from node.ipc.messages import EngineSpec
from node.models.saved_hashes import HashingStopped

_DARWIN_THREAD, _DARWIN_BACKGROUND = 3, 0x1000
"""PRIO_DARWIN_THREAD and PRIO_DARWIN_BG of <sys/resource.h>: the thread gets less processor time,
disk and network than all others. Not run on a Mac yet."""
_NICEST = 19
NAMING_S = 1.0
"""Seconds that a closing engine waits for the name of its folder."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Identifies a model's KV: its configuration texts and the weight_hashes of its weights."""

    texts: ModelTexts
    weight_hashes: WeightHashes

    @property
    def known_fingerprint(self) -> str | None:
        """The fingerprint, if its weight weight_hashes are saved and the weights have not changed
        since; otherwise None."""
        weight_hashes = self.weight_hashes.known()
        return None if weight_hashes is None else self.texts.fingerprint(weight_hashes)


class Naming:
    """Computes a model's fingerprint in a thread and renames the folder of its tier to it."""

    def __init__(self, model: str, identity: ModelIdentity, folder: Path) -> None:
        self._model = model
        self._identity = identity
        self._folder = folder
        self._is_named = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fingerprint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits up to `NAMING_S` for the thread, then stops it."""
        self._thread.join(NAMING_S)
        self._stopped.set()
        self._thread.join()

    def sweep(self) -> None:
        """Deletes a folder without a final name, which no later load would find. To be called
        after `close` and the end of the tier."""
        if not self._is_named:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        _lower_priority()
        try:
            weight_hashes = self._identity.weight_hashes.make(self._stopped.is_set)
            name_folder(self._folder, self._identity.texts.fingerprint(weight_hashes))
            self._is_named = True
        except HashingStopped:
            pass
        except OSError as error:
            logger.warning("The next load of %s cannot use its KV on disk: %s", self._model, error)


class OpenDisk(NamedTuple):
    """The open tier, and the naming of its folder if that has no name yet."""

    tier: SsdTier | None
    naming: Naming | None = None


def begin_identity(spec: EngineSpec) -> "Future[ModelIdentity] | None":
    """Starts computing the identity of a model with a disk tier, in a thread, so that the model can
    be loaded meanwhile. It describes the files as they are at the call."""
    if spec.disk is None:
        return None
    thread = ThreadPoolExecutor(1, "identity")
    made = thread.submit(_identify, spec, Path(spec.disk.folder))
    thread.shutdown(wait=False)
    return made


def open_disk(
    spec: EngineSpec, made: "Future[ModelIdentity] | None", warn: Callable[[str], None]
) -> OpenDisk:
    """Opens the model's disk tier, if it has one and no other process uses it; otherwise reports
    the reason by `warn` and returns no tier. Raises `LoadError`."""
    if spec.disk is None or made is None:
        return OpenDisk(None)
    home, identity = Path(spec.disk.folder), made.result()
    limits = Limits(
        max_bytes=spec.disk.max_bytes,
        max_files=spec.disk.max_files,
        max_bytes_per_day=spec.disk.max_bytes_per_day,
    )
    name, dependencies = identity.known_fingerprint, TierDependencies(memory=array_memory)
    try:
        if name is not None:
            claim(home, name)
            return OpenDisk(open_tier(home, limits, name, dependencies=dependencies))
        tier = open_tier(home, limits, unnamed(), dependencies=dependencies)
        return OpenDisk(tier, Naming(spec.model, identity, tier.folder))
    except (OSError, TierBusy, TierUnavailable) as error:
        warn(f"{spec.model} runs without its KV cache on disk: {error}")
        return OpenDisk(None)


def _identify(spec: EngineSpec, home: Path) -> ModelIdentity:
    folder = Path(spec.folder)
    try:
        # Before the weights are read: files that change afterwards are hashed again.
        weight_hashes = WeightHashes(home, folder)
    except OSError as error:
        raise LoadError(f"{folder} has no fingerprint: {error}.") from error
    texts = ModelTexts(folder, kv_cache_bits=spec.kv_cache_bits, kv_live_bits=spec.kv_live_bits)
    return ModelIdentity(texts, weight_hashes)


def _lower_priority() -> None:
    """Gives this thread the lowest priority."""
    with contextlib.suppress(OSError):
        if sys.platform == "darwin":
            os.setpriority(_DARWIN_THREAD, 0, _DARWIN_BACKGROUND)
        else:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICEST)
