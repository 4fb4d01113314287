"""Constructs and connects the router's parts; the only module that knows their order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.routing import BaseRoute, Match, Router

from node.protocol.chain.prefix import PrefixHasher
from node.protocol.ollama.left_out import RUNNING
from node.protocol.paths import OLLAMA_PREFIX, VERSION_PREFIX
from registry import aliases, keys, meta, nodes, policies, residency, schedules, teams, usage
from registry.backup import Backups
from registry.db import Registry
from registry.migrate import open_migrated
from router.api.admin.routes import admin_routes
from router.api.bodies import Scope
from router.api.metrics import metrics_routes
from router.api.ollama import Ollama
from router.api.v1 import V1
from router.api.whole_responses import error_response, send_error
from router.auth import KeyRing, day_tokens
from router.core import Core
from router.dispatch.dispatcher import Dispatcher, DispatchRecords
from router.dispatch.scheduler_driver import SchedulerDriver
from router.dispatch.traffic import Traffic
from router.errors import MethodNotAllowed, RouterError, ShuttingDown, StartError, UnknownPath
from router.first_keys import make_first_keys
from router.fleet.discovery import Discovery, browse_network
from router.fleet.fleet import Fleet
from router.fleet.model_gauges import ModelGauges
from router.fleet.moved_nodes import MovedNodes
from router.fleet.predictions import Predictions
from router.fleet.prefix_index import PrefixIndex
from router.fleet.stall_watchdog import StallLimits, StallWatchdog
from router.fleet.token_rates import TokenRates
from router.fleet.waker import Waker
from router.fleet.watcher import Watcher
from router.jobs import Jobs
from router.lifecycle.action_runner import Dependencies
from router.lifecycle.lifecycle import Lifecycle
from router.limits.account import day_s
from router.limits.limiter import Limiter
from router.records.decisions import Decisions
from router.records.ledger import Ledger
from router.records.metrics import Metrics
from router.records.refusals import Refusals
from router.records.request_log import RequestLog
from router.records.settlement import Settlement
from router.routing.model_names import Names
from router.routing.paid_budgets import Budgets, month_s
from router.routing.sticky_targets import StickyTargets
from router.scheduler.queue import AdmissionLimits
from router.scheduler.scheduler import Scheduler
from router.settings import FIRST_CONTACTS_S, Settings
from router.upstream.origins import Origins
from serving.awake import Awake
from serving.errors import CannotStart
from serving.http.exchange import Receive, Send, as_get
from serving.live_settings import LiveSettings
from serving.logs.logs import set_level
from serving.sleep_watch import watch_sleep
from serving.tracing.spans import open_tracing

SERVICE = "mlx-fleet-router"
"""The router's name in spans."""
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


@asynccontextmanager
async def open_core(
    settings: Settings,
    wall: Callable[[], float] = time.time,
    reread: Callable[[], Settings] | None = None,
) -> AsyncIterator[Core]:
    """Starts the router without its HTTP side, yields it, and shuts it down.

    `wall` is the clock of the schedules, `reread` is that of `LiveSettings`. Raises the registry's
    errors if it cannot be opened.
    """
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    registry = await open_migrated(settings.registry)
    try:
        await make_first_keys(registry, settings)
        live = LiveSettings(settings, reread, (StartError, CannotStart))
        core = await _load_core(registry, live, wall)
        await _follow_nodes(core)
        jobs = Jobs(registry, core.fleet, core.ledger, settings.audit_entries)
        core.settings.on_change(jobs.follow)
        jobs.start()
        core.awake.start()
        waking = asyncio.create_task(watch_sleep(core.watcher.on_wake))
        try:
            # Requests wait in the backlog of the port meanwhile, instead of naming unknown models.
            await core.watcher.first_contacts(FIRST_CONTACTS_S)
            await core.lifecycle.start()
            async with MovedNodes(registry, core.fleet, core.watcher, core.discovery):
                yield core
        finally:
            waking.cancel()
            await asyncio.wait({waking})
            await core.lifecycle.close()
            await core.waker.close()
            await core.watcher.close()
            await jobs.close()
            await core.awake.close()
    finally:
        await registry.close()


def _request_log(settings: Settings) -> RequestLog:
    tracing = open_tracing(settings.otel_endpoint, SERVICE)
    return RequestLog(is_on=settings.log_requests, tracing=tracing)


async def _follow_nodes(core: Core) -> None:
    async with core.registry.read() as session:
        for record in await nodes.list_all(session):
            core.watcher.start(record)
            core.waker.follow(record)


async def _load_keys(registry: Registry, wall: Callable[[], float]) -> tuple[KeyRing, Limiter]:
    """Reads the keys and teams, and what each has used of its limits this day."""
    async with registry.read() as session:
        known_keys, known_teams = await keys.list_all(session), await teams.list_all(session)
        used = await usage.tokens(session, day_s(wall()))
    limiter = Limiter(day_tokens(known_keys, known_teams, used), wall_clock=wall)
    return KeyRing(known_keys, known_teams), limiter


async def _load_core(
    registry: Registry, live: LiveSettings[Settings], wall: Callable[[], float]
) -> Core:
    own_id = await meta.router_id(registry)
    async with registry.read() as session:
        fleet = Fleet(await residency.list_all(session))
        names = Names(fleet, await aliases.list_all(session))
        spent = await usage.costs(session, month_s(wall()))
        wanted = await policies.list_all(session), await schedules.list_all(session)
    ring, limiter = await _load_keys(registry, wall)
    metrics = Metrics(fleet.name_of)
    budgets = Budgets(fleet, spent, wall, metrics.charged)
    prefixes, decisions = PrefixIndex(), Decisions()
    scheduler = Scheduler(prefixes, admission_limits(live.current))
    driver = SchedulerDriver(scheduler, fleet, decisions, metrics, Predictions(prefixes, metrics))
    origins = Origins(own_id, await meta.usage_secret(registry))
    lines = _request_log(live.current)
    ledger = Ledger(origins, driver, budgets.charge, Settlement(limiter), request_log=lines)
    watcher = Watcher(fleet, ledger, prefixes)
    records = DispatchRecords(prefixes, decisions, metrics)
    parts = Dependencies(registry, fleet, watcher, driver.traffic.queued_models, own_id, wall)
    core = Core(
        settings=live,
        router_id=own_id,
        registry=registry,
        backups=Backups(registry.path),
        keys=ring,
        fleet=fleet,
        rates=TokenRates(fleet),
        discovery=Discovery(browse_network if live.current.discovery else None),
        names=names,
        last_targets=StickyTargets(),
        budgets=budgets,
        limiter=limiter,
        prefixes=prefixes,
        ledger=ledger,
        metrics=metrics,
        refusals=Refusals(registry),
        prefix_hasher=PrefixHasher(),
        watcher=watcher,
        dispatcher=Dispatcher(fleet, watcher, ledger, driver, records),
        stalls=StallWatchdog(fleet, stall_limits(live.current), metrics.stalled),
        traffic=driver.traffic,
        decisions=decisions,
        lifecycle=Lifecycle(parts, *wanted),
        awake=Awake(live.current.stay_awake),
        waker=Waker(fleet),
    )
    _connect(core, scheduler, driver)
    return core


def _connect(core: Core, scheduler: Scheduler, driver: SchedulerDriver) -> None:
    driver.wake_node = core.waker.wake
    _add_gauges(core.metrics, core.fleet, core.prefixes, core.traffic)
    core.settings.on_change(lambda settings: _follow(settings, core, scheduler))


def _follow(settings: Settings, core: Core, scheduler: Scheduler) -> None:
    """Gives the parts what a reload has changed; the others read `core.settings` anew for each
    request."""
    scheduler.set_limits(admission_limits(settings))
    core.stalls.set_limits(stall_limits(settings))
    core.ledger.request_log.is_on = settings.log_requests
    set_level(settings.logs)
    core.awake.set_mode(settings.stay_awake)


def admission_limits(settings: Settings) -> AdmissionLimits:
    return AdmissionLimits(settings.queue_limit, settings.promote_after_s)


def stall_limits(settings: Settings) -> StallLimits:
    return StallLimits(settings.stall_s, settings.load_timeout_s, settings.first_token_timeout_s)


def _add_gauges(metrics: Metrics, fleet: Fleet, prefixes: PrefixIndex, traffic: Traffic) -> None:
    ModelGauges(fleet, metrics)
    metrics.add_node_gauge(
        "prefix_index_entries",
        "Cached prefixes that nodes have reported.",
        prefixes.entries_by_node,
    )
    metrics.add_node_gauge(
        "open_leases",
        "Requests that have a lease on a node.",
        traffic.leases_by_node,
    )
    metrics.add_gauge(
        "queue_length",
        "Requests that wait for a node.",
        ("model", "class"),
        traffic.queue_lengths,
    )
    metrics.add_gauge(
        "queue_oldest_seconds",
        "Age of the oldest request that waits for a node.",
        ("model", "class"),
        lambda: traffic.oldest_waits().items(),
    )
    metrics.add_gauge(
        "breaker_state",
        "1 for the state of a model's breaker on a node, where that is not closed.",
        ("node", "model", "state"),
        traffic.breaker_states,
    )


def build_app(core: Core) -> AsgiApp:
    """Builds the HTTP side: /v1 and /api are raw ASGI in front, everything else is FastAPI."""
    v1 = V1(core)
    ollama = Ollama(core, v1.inference)
    rest = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    admin = admin_routes(lambda: core)
    rest.include_router(admin)
    counted = metrics_routes(lambda: core)
    rest.include_router(counted)

    _respond_with_errors(rest, (admin, counted, rest.router))

    @rest.get("/")
    async def root() -> PlainTextResponse:
        return PlainTextResponse(RUNNING)

    @rest.get("/health")
    async def health() -> dict[str, str]:
        """Reports the health of the process, which serves requests even while its registry cannot
        be written."""
        if core.registry.trouble.sentence:
            message = "The registry cannot be written; the router's log says why."
            return {"status": "degraded", "registry": message}
        return {"status": "ok"}

    @rest.get("/ready")
    async def ready() -> JSONResponse:
        up = [view.name for view in core.fleet.snapshot if view.reachable]
        status = 200 if up else 503
        return JSONResponse({"ready": bool(up), "nodes": len(up)}, status_code=status)

    async def beside(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await rest(as_get(scope), receive, send)
        except asyncio.CancelledError:
            await send_error(send, ShuttingDown())

    return _by_path(v1, ollama, beside)


def _by_path(v1: AsgiApp, ollama: AsgiApp, beside: AsgiApp) -> AsgiApp:
    def app(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        # No coroutine of its own: a request's events pass through each.
        if scope["type"] == "http":
            path = f"{scope['path']}/"
            if path.startswith(VERSION_PREFIX):
                return v1(scope, receive, send)
            if path.startswith(OLLAMA_PREFIX):
                return ollama(scope, receive, send)
        return beside(scope, receive, send)

    return app


def _respond_with_errors(rest: FastAPI, routers: Iterable[Router]) -> None:
    """Makes every error response use OpenAI's envelope."""

    @rest.exception_handler(404)
    @rest.exception_handler(405)
    async def refused(request: Request, error: Exception) -> Response:
        path = request.scope["path"]
        routes = (route for router in routers for route in router.routes)
        methods = methods_of(routes, request.scope)
        if getattr(error, "status_code", 404) == 405 and methods:
            return error_response(MethodNotAllowed.at(path, methods))
        return error_response(UnknownPath.at(path))

    @rest.exception_handler(Exception)
    async def failed(_request: Request, _error: Exception) -> Response:
        """Responds with 500; Starlette raises the error again, so that the connection logs it."""
        return error_response(RouterError())


def methods_of(routes: Iterable[BaseRoute], scope: Scope) -> list[str]:
    """Lists the methods that any route matching the path accepts, whatever the request's own
    method."""
    found: set[str] = set()
    for route in routes:
        if route.matches(scope)[0] is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return sorted(found)
