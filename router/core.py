"""The router's parts, made in one place and passed as one object."""

from dataclasses import dataclass

from node.protocol.prefix import Chainer
from registry.db import Registry
from router.auth import KeyRing
from router.budgets import Budgets
from router.decisions import Decisions
from router.dispatcher import Dispatcher
from router.fleet import Fleet
from router.last_targets import LastTargets
from router.ledger import Ledger
from router.lifecycle.lifecycle import Lifecycle
from router.metrics import Metrics
from router.names import Names
from router.prefix_index import PrefixIndex
from router.settings import Settings
from router.traffic import Traffic
from router.watcher import Watcher
from serving.awake import Awake


@dataclass(frozen=True, slots=True)
class Core:
    """Everything that the APIs act on."""

    settings: Settings
    router_id: str
    registry: Registry
    keys: KeyRing
    fleet: Fleet
    names: Names
    last_targets: LastTargets
    budgets: Budgets
    prefixes: PrefixIndex
    ledger: Ledger
    metrics: Metrics
    chainer: Chainer
    watcher: Watcher
    dispatcher: Dispatcher
    traffic: Traffic
    decisions: Decisions
    lifecycle: Lifecycle
    awake: Awake
