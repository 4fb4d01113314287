"""The router's parts as one object."""

from dataclasses import dataclass

from node.protocol.chain.prefix import PrefixHasher
from registry.backup import Backups
from registry.db import Registry
from router.auth import KeyRing
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.traffic import Traffic
from router.fleet.discovery import Discovery
from router.fleet.fleet import Fleet
from router.fleet.prefix_index import PrefixIndex
from router.fleet.stall_watchdog import StallWatchdog
from router.fleet.token_rates import TokenRates
from router.fleet.waker import Waker
from router.fleet.watcher import Watcher
from router.lifecycle.lifecycle import Lifecycle
from router.limits.limiter import Limiter
from router.records.decisions import Decisions
from router.records.ledger import Ledger
from router.records.metrics import Metrics
from router.records.refusals import Refusals
from router.routing.model_names import Names
from router.routing.paid_budgets import Budgets
from router.routing.sticky_targets import StickyTargets
from router.settings import Settings
from serving.awake import Awake
from serving.live_settings import LiveSettings


@dataclass(frozen=True, slots=True)
class Core:
    """All parts that the APIs use; made by `router.app`."""

    settings: LiveSettings[Settings]
    router_id: str
    registry: Registry
    backups: Backups
    keys: KeyRing
    fleet: Fleet
    rates: TokenRates
    discovery: Discovery
    names: Names
    last_targets: StickyTargets
    budgets: Budgets
    limiter: Limiter
    prefixes: PrefixIndex
    ledger: Ledger
    metrics: Metrics
    refusals: Refusals
    prefix_hasher: PrefixHasher
    watcher: Watcher
    dispatcher: Dispatcher
    stalls: StallWatchdog
    traffic: Traffic
    decisions: Decisions
    lifecycle: Lifecycle
    awake: Awake
    waker: Waker
