"""The KV of one model on disk: under which name, and what an engine holds of it.

The name is the model's fingerprint, which takes reading all of its weights. That is done once, in a
thread that gives way to everything else, and beside a tier that is open already: one that begins
empty in a folder without a name, and gets its name when the fingerprint is known.
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
from node.engine.cache.disk.tier import SsdTier, open_tier
from node.engine.model.digests import Digests
from node.engine.model.fingerprint import ModelTexts
from node.ipc.messages import EngineSpec
from node.models.saved_hashes import HashingStopped

_DARWIN_THREAD, _DARWIN_BACKGROUND = 3, 0x1000
"""PRIO_DARWIN_THREAD and PRIO_DARWIN_BG of <sys/resource.h>: less processor, disk and network than
all others get. Not run on a Mac yet."""
_NICEST = 19
NAMING_S = 1.0
"""How long an engine that ends waits for the name of its folder."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """What tells a model's KV from that of all others."""

    texts: ModelTexts
    digests: Digests

    @property
    def known(self) -> str | None:
        """The fingerprint, where the weights have not changed since it was made."""
        digests = self.digests.known()
        return None if digests is None else self.texts.fingerprint(digests)


class Naming:
    """Makes the fingerprint of a model, and names the folder of its tier by it."""

    def __init__(self, model: str, identity: Identity, folder: Path) -> None:
        self._model = model
        self._identity = identity
        self._folder = folder
        self._is_named = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fingerprint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Gives it up where it is not done soon."""
        self._thread.join(NAMING_S)
        self._stopped.set()
        self._thread.join()

    def sweep(self) -> None:
        """Once it and the tier are closed: deletes a folder that nobody would find again."""
        if not self._is_named:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        _give_way()
        try:
            digests = self._identity.digests.make(self._stopped.is_set)
            name_folder(self._folder, self._identity.texts.fingerprint(digests))
            self._is_named = True
        except HashingStopped:
            pass
        except OSError as error:
            logger.warning("KV of %s on disk is of no use to its next load: %s", self._model, error)


class OpenDisk(NamedTuple):
    """A tier, and what gives it its name, where it has none."""

    tier: SsdTier | None
    naming: Naming | None = None


def begin_identity(spec: EngineSpec) -> "Future[Identity] | None":
    """The identity of a model that has a disk tier, made in a thread, in which the model itself
    can be read. It is that of the files as they are now."""
    if spec.disk is None:
        return None
    thread = ThreadPoolExecutor(1, "identity")
    made = thread.submit(_identify, spec, Path(spec.disk.folder))
    thread.shutdown(wait=False)
    return made


def open_disk(
    spec: EngineSpec, made: "Future[Identity] | None", say: Callable[[str], None]
) -> OpenDisk:
    """The disk tier of the model, if it has one and no other process uses it. Raises
    `LoadError`."""
    if spec.disk is None or made is None:
        return OpenDisk(None)
    home, identity = Path(spec.disk.folder), made.result()
    limits = Limits(
        max_bytes=spec.disk.max_bytes,
        max_files=spec.disk.max_files,
        max_bytes_per_day=spec.disk.max_bytes_per_day,
    )
    name = identity.known
    try:
        if name is not None:
            claim(home, name)
            return OpenDisk(open_tier(home, limits, name))
        tier = open_tier(home, limits, unnamed())
        return OpenDisk(tier, Naming(spec.model, identity, tier.folder))
    except (OSError, TierBusy, TierUnavailable) as error:
        say(f"{spec.model} runs without its KV cache on disk: {error}")
        return OpenDisk(None)


def _identify(spec: EngineSpec, home: Path) -> Identity:
    folder = Path(spec.folder)
    try:
        # First: what is read later may be newer, and is then hashed again.
        digests = Digests(home, folder)
    except OSError as error:
        raise LoadError(f"{folder} has no fingerprint: {error}.") from error
    texts = ModelTexts(folder, kv_cache_bits=spec.kv_cache_bits, kv_live_bits=spec.kv_live_bits)
    return Identity(texts, digests)


def _give_way() -> None:
    """Lets everything else go before this thread."""
    with contextlib.suppress(OSError):
        if sys.platform == "darwin":
            os.setpriority(_DARWIN_THREAD, 0, _DARWIN_BACKGROUND)
        else:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICEST)
