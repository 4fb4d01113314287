"""The router's parts, made in one place and passed as one object."""

from dataclasses import dataclass

from node.protocol.prefix import Chainer
from registry.db import Registry
from router.auth import KeyRing
from router.dispatcher import Dispatcher
from router.fleet import Fleet
from router.ledger import Ledger
from router.metrics import Metrics
from router.prefix_index import PrefixIndex
from router.settings import Settings
from router.watcher import Watcher


@dataclass(frozen=True, slots=True)
class Core:
    """Everything that the APIs act on."""

    settings: Settings
    router_id: str
    registry: Registry
    keys: KeyRing
    fleet: Fleet
    prefixes: PrefixIndex
    ledger: Ledger
    metrics: Metrics
    chainer: Chainer
    watcher: Watcher
    dispatcher: Dispatcher
