"""Wires one node agent: makes an ASGI application from settings. No other module makes these
parts."""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from node.agent.agent import Agent, Identity
from node.agent.spans import SERVICE
from node.agent.warm_prompts import read_plan
from node.defaults import ModelDefaults
from node.engine.base import LoadError
from node.engine.scripted.script import Script, encode_script, read_script
from node.engines.memory_budget import OVERHEAD_BYTES, Budget
from node.engines.sizing import Room, most_disk_bytes, plan_engine
from node.engines.slot import EngineKind
from node.errors import ForeignHost, StartError
from node.hardware import Machine, disk_bytes, free_disk_bytes, read_machine, this_kernel
from node.models.formats import ModelFormats
from node.models.model_files import NotAModel
from node.models.store import Contents, ModelEntry, ModelStore, ServedFolder, read_entry
from node.protocol.paths import OLLAMA_PREFIX, VERSION_PREFIX
from node.server import faults
from node.server.access import Access
from node.server.call import refusal_body, send_error
from node.server.control import add_error_handlers, control_router, health_router
from node.server.control_models import files_router, models_router
from node.server.metrics import metrics_router
from node.server.pairing_codes import PairingDesk
from node.server.pairing_routes import pairing_router, pairings_router
from node.server.pairings import Pairings
from node.server.response_store import ResponseStore, StoreLimits
from node.server.v1 import Api, ApiOptions
from node.settings import STREAM_KEEPALIVE_S, Settings
from serving import awake
from serving.http.callers import Callers, Limits
from serving.http.exchange import as_get
from serving.http.timeouts import DEFAULT_TIMEOUTS, ClientTimeouts
from serving.open_files import open_files
from serving.own_machine import is_loopback
from serving.tls.own_certificate import OwnCertificate, own_certificate
from serving.tracing.spans import open_tracing
from serving.units import gib, size
from serving.version import own_version

STOP_GRACE_S = 5.0
"""Seconds that an engine may take to end at shutdown before it is killed."""
_FILES_EACH = 1
"""Open files per stream: the client's connection. Engines are processes of their own."""

_API_PREFIXES = (VERSION_PREFIX, OLLAMA_PREFIX)

logger = logging.getLogger(__name__)


class NodeApp:
    """The whole agent as one ASGI application. Over plain HTTP, which only programs of its machine
    can speak with it, it accepts loopback `Host` headers only: a web page whose name resolves to
    127.0.0.1 must not reach the agent from a browser."""

    def __init__(
        self,
        agent: Agent,
        routes: ASGIApp,
        callers: Callers,
        desk: PairingDesk,
        certificate: OwnCertificate,
    ) -> None:
        self.agent = agent
        self.callers = callers
        self.desk = desk
        self.certificate = certificate
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_plain = scope["type"] == "http" and scope.get("scheme") != "https"
        if is_plain and not _is_for_loopback(scope):
            await send_error(send, ForeignHost())
        else:
            await self._routes(scope, receive, send)


class _Routes:
    """Routes `/v1/*` and `/api/*` to the raw ASGI application, everything else to FastAPI."""

    def __init__(self, api: ASGIApp, rest: ASGIApp) -> None:
        self._api = api
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_api = scope["type"] == "http" and scope["path"].startswith(_API_PREFIXES)
        if is_api:
            await self._api(scope, receive, send)
        else:
            await self._rest(as_get(scope), receive, send)


def _is_for_loopback(scope: Scope) -> bool:
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return all(is_loopback(_without_port(host)) for host in hosts)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def build_app(
    settings: Settings,
    *,
    stream_keepalive_s: float = STREAM_KEEPALIVE_S,
    timeouts: ClientTimeouts = DEFAULT_TIMEOUTS,
) -> NodeApp:
    """The agent of `settings`. Raises `StartError` and `CertificateUnusable`."""
    agent = build_agent(settings)
    token, _ = load_token(settings)
    certificate = own_certificate(settings.tls_file)
    pairings = Pairings(settings.pairings_file)
    access = Access(token, pairings)
    desk = PairingDesk(agent.identity.node_id, certificate.fingerprint, pairings)
    responses = ResponseStore(settings.responses_folder, _response_limits(settings))

    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(trim_disk, settings)
        await agent.start()
        try:
            yield
        finally:
            await agent.close(STOP_GRACE_S)
            await responses.close()

    rest = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    for router in (
        health_router(agent),
        metrics_router(agent.metrics, access),
        control_router(agent, access),
        models_router(agent, access),
        files_router(agent),
        pairing_router(desk, access),
        pairings_router(desk, access, settings.host),
    ):
        rest.include_router(router)
    add_error_handlers(rest)
    options = ApiOptions(access, stream_keepalive_s, settings.reasoning_field)
    callers = Callers(refusal_body, Limits.within(open_files(), _FILES_EACH), timeouts)
    routes: ASGIApp = _Routes(Api(agent, options, responses, callers), rest)
    if settings.engine == "scripted":
        routes = faults.wrap(routes, settings)
    return NodeApp(agent, routes, callers, desk, certificate)


def _response_limits(settings: Settings) -> StoreLimits:
    most_bytes = settings.responses_bytes
    return StoreLimits() if most_bytes is None else StoreLimits(max_bytes=most_bytes)


def build_agent(settings: Settings) -> Agent:
    """The agent without its HTTP side. Raises `StartError` and `CannotStart`."""
    machine = read_machine(this_kernel())
    store = build_store(settings)
    limit_bytes = check_settings(settings, machine, store)
    is_scripted = settings.engine == "scripted"
    script_json = encode_script(_script(settings)) if is_scripted else ""
    return Agent(
        Identity(node_id=load_node_id(settings), version=own_version(), chip=machine.chip),
        store,
        Budget(limit_bytes),
        EngineKind(settings, machine, script_json),
        read_plan(settings.warm),
        open_tracing(settings.otel_endpoint, SERVICE),
    )


def check_settings(settings: Settings, machine: Machine, store: ModelStore) -> int:
    """The memory limit. Raises `StartError` and `CannotStart` if the settings do not go together
    with this machine and its models."""
    awake.need_command(settings.stay_awake)
    limit_bytes = memory_limit_bytes(settings, machine)
    # A folder that cannot be read stops the start here, with a one-line error.
    _check_pins(store.list(), settings, limit_bytes, has_gpu=machine.has_gpu)
    return limit_bytes


def _check_pins(
    entries: Sequence[ModelEntry], settings: Settings, limit_bytes: int, *, has_gpu: bool
) -> None:
    """Raises `StartError` if the pinned models do not fit together."""
    room = Room(free_bytes=0, disk_free_bytes=0, has_gpu=has_gpu)
    least_bytes = {
        entry.name: plan_engine(entry, room, settings).fixed.total_bytes
        for entry in entries
        if entry.name in settings.pins
    }
    if sum(least_bytes.values()) > limit_bytes:
        each = ", ".join(f"{name} {gib(size)}" for name, size in least_bytes.items())
        raise StartError(
            f"The pinned models do not fit together: {each}, but the memory limit is "
            f"{gib(limit_bytes)}. Pin fewer, or raise --memory-limit."
        )


def build_store(settings: Settings) -> ModelStore:
    """The models to serve. Raises `StartError`."""
    formats = ModelFormats(settings.tool_parsers, settings.reasoning_parsers)
    defaults = ModelDefaults(settings.default_chat_template_kwargs, settings.max_thinking_tokens)
    if settings.engine == "scripted":
        entries = scripted_entries(_script(settings))
        return ScriptedStore(entries, formats, defaults, settings.models_folder)
    return ModelStore(settings.models_folder, _served(settings), formats, defaults)


def scripted_entries(script: Script) -> tuple[ModelEntry, ...]:
    """The script's models as if they were on disk; their folder is empty."""
    return tuple(
        ModelEntry(
            name=model.name,
            folder=Path(),
            weight_bytes=model.weight_bytes,
            context_tokens=model.context_tokens,
            kv_bytes_per_token=model.kv_bytes_per_token,
        )
        for model in script.models
    )


def trim_disk(settings: Settings) -> None:
    """Deletes KV on disk that no engine uses, also of models that were removed or have changed,
    until the total is within the limit for the models here."""
    if settings.engine == "scripted":
        return
    # The base install lacks the modules that these need.
    from node.engine.cache.disk.folder import TierUnavailable
    from node.engine.cache.disk.home import trim_home

    folder = settings.kv_folder
    each_bytes = most_disk_bytes(free_disk_bytes(folder), settings)
    try:
        trim_home(folder, each_bytes * max(len(build_store(settings).list()), 1))
    except (OSError, TierUnavailable) as exc:
        logger.warning("Old KV in %s cannot be deleted: %s", folder, exc)


def memory_limit_bytes(settings: Settings, machine: Machine) -> int:
    """The memory limit for all models. Raises `StartError` for a limit beyond this machine, or a
    cache beyond the limit or the disk."""
    limit_bytes = settings.memory_limit_bytes
    if limit_bytes is None:
        limit_bytes = machine.default_limit_bytes
    elif limit_bytes <= OVERHEAD_BYTES:
        raise StartError(
            f"memory_limit_bytes is {size(limit_bytes)}, but an engine needs more than "
            f"{size(OVERHEAD_BYTES)} with its model: raise --memory-limit."
        )
    elif settings.engine != "scripted" and limit_bytes > machine.memory_bytes:
        raise StartError(
            f"memory_limit_bytes is {gib(limit_bytes)}, but this machine has "
            f"{gib(machine.memory_bytes)} of memory."
        )
    for name, option in (("kv_cache_bytes", "cache"), ("kv_live_bytes", "live")):
        size_bytes = getattr(settings, name)
        if size_bytes is not None and size_bytes > limit_bytes:
            raise StartError(
                f"{name} is {gib(size_bytes)}, but all models together may take "
                f"{gib(limit_bytes)}: lower --kv-{option}-size, or raise --memory-limit."
            )
    room_bytes = limit_bytes if settings.kv_cache_bytes is None else settings.kv_cache_bytes
    if settings.kv_snapshot_bytes is not None and settings.kv_snapshot_bytes > room_bytes:
        raise StartError(
            f"kv_snapshot_bytes is {gib(settings.kv_snapshot_bytes)}, but the stored KV that "
            f"snapshots are a part of may take {gib(room_bytes)}: lower --kv-snapshot-size."
        )
    if settings.wired != "off" and not machine.has_gpu:
        raise StartError(f"wired is {settings.wired}, but this machine has no GPU of Apple's.")
    _check_disk(settings)
    return limit_bytes


def _check_disk(settings: Settings) -> None:
    size_bytes = disk_bytes(settings.kv_folder)
    given_bytes = settings.kv_disk_bytes
    if given_bytes is not None and 0 < size_bytes < given_bytes:
        raise StartError(
            f"kv_disk_bytes is {gib(given_bytes)}, but the disk of {settings.kv_folder} has "
            f"{gib(size_bytes)}: lower --kv-disk-size, or give off or auto."
        )


def _script(settings: Settings) -> Script:
    try:
        return read_script(settings.script)
    except LoadError as exc:
        raise StartError(str(exc)) from None


def _served(settings: Settings) -> tuple[ServedFolder, ...]:
    """The model folders outside the store. A wrong one stops the start instead of the first
    request."""
    names: tuple[str | None, ...] = settings.served_model_names or (None,) * len(settings.models)
    if len(names) != len(settings.models):
        raise StartError(
            f"There are {len(settings.models)} models to serve, but {len(names)} names for them: "
            "give one name for each model, or none."
        )
    served = tuple(map(ServedFolder, settings.models, names))
    for folder in served:
        try:
            read_entry(folder.path, folder.name, ModelFormats())
        except NotAModel as exc:
            raise StartError(exc.message) from None
    return served


class ScriptedStore(ModelStore):
    """The models that a script names, in place of those on disk."""

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        formats: ModelFormats,
        defaults: ModelDefaults | None = None,
        folder: Path = Path(),
    ) -> None:
        super().__init__(folder)
        chosen = defaults or ModelDefaults()
        self._entries = tuple(
            replace(entry, formats=formats.of(entry.name, None), defaults=chosen.of(entry.name))
            for entry in entries
        )

    def contents(self) -> Contents:
        return Contents(self._entries, ())


def load_token(settings: Settings) -> tuple[str, bool]:
    """The token in `settings.token_file`, created by the first call, and True if it is new. Raises
    `StartError` if the file cannot be read or written, or is empty."""
    return _read_or_create(settings.token_file, 16)


def load_node_id(settings: Settings) -> str:
    """The node's id, created at the first start. Raises `StartError`."""
    return _read_or_create(settings.home / "node-id", 8)[0]


def _read_or_create(file: Path, random_bytes: int) -> tuple[str, bool]:
    """The text of a file that only its owner can read, and True if the file is new. A new file has
    random hex digits."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            text = secrets.token_hex(random_bytes)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(text + "\n")
            return text, True
        text = file.read_text().strip()
    except OSError as exc:
        raise StartError(f"{file} cannot be used: {exc.strerror}.") from None
    if not text:
        raise StartError(f"{file} is empty; delete it to have a new one made.")
    return text, False
