"""Reads a request's session, priority class and deadline from its headers and body.

A client names its session in one of these ways; the first that is present counts:

1. `x-session-id` (OpenCode, and any client that chooses to), with `x-parent-session-id`.
2. Claude Code's session id. An agent of a session is a session of its own; its parent is the agent
   that called it, or else the session.
3. Codex's `thread-id`; its parent is the parent thread, or else the session (`session-id`).
4. In the body: `prompt_cache_key` in OpenAI's dialects, or the session within Claude Code's
   `metadata.user_id`.

`user`, and a `metadata.user_id` without a session, name a person with perhaps many sessions at
once. As one session they would all go to one node, so the name counts as a parent: if there is a
session of exactly that name, the others begin on its node.
"""

import math
import re
from collections.abc import Iterable, Mapping
from hashlib import blake2b

import msgspec

from node.protocol.chain.prefix import Fields
from node.protocol.paths import ApiDialect, dialect_of
from router.errors import BadRequest, Forbidden
from router.types import Caller, Hints, Priority

HEADER_PRIORITY = b"x-fleet-priority"
HEADER_DEADLINE = b"x-fleet-deadline-s"
HEADER_DECISION = b"x-fleet-decision"
MAX_DEADLINE_S = 86_400
MAX_ID_CHARS = 128
"""A longer name is replaced by its hash."""

_SESSION = b"x-session-id"
_PARENT = b"x-parent-session-id"
_CLAUDE_SESSION = b"x-claude-code-session-id"
_CLAUDE_AGENT = b"x-claude-code-agent-id"
_CLAUDE_PARENT = b"x-claude-code-parent-agent-id"
_CODEX_SESSION = b"session-id"
_CODEX_THREAD = b"thread-id"
_CODEX_PARENT = b"x-codex-parent-thread-id"
ROUTING_HEADERS = frozenset(
    (
        HEADER_PRIORITY,
        HEADER_DEADLINE,
        HEADER_DECISION,
        _SESSION,
        _PARENT,
        _CLAUDE_SESSION,
        _CLAUDE_AGENT,
        _CLAUDE_PARENT,
        _CODEX_SESSION,
        _CODEX_THREAD,
        _CODEX_PARENT,
    )
)
"""All headers that this module reads."""

_CLASSES = {each.name.lower().encode(): each for each in Priority}
_SECONDS = re.compile(rb"\d{1,5}(?:\.\d{1,9})?")
_YES = (b"1", b"true")
_CLAUDE_MARK = "_session_"
"""Precedes the session in the `metadata.user_id` of older versions of Claude Code; newer ones write
a JSON object there."""


class RoutingHeaders(msgspec.Struct, frozen=True):
    """Values of the headers that concern routing."""

    session: str = ""
    parent: str = ""
    priority: Priority = Priority.DEFAULT
    deadline_after_s: float = math.inf
    """Seconds after the request's arrival within which the response must begin."""
    shows_decision: bool = False


_ABSENT = msgspec.Raw(b"")


class _Metadata(msgspec.Struct):
    user_id: msgspec.Raw = _ABSENT


class _ClaudeUser(msgspec.Struct):
    session_id: str = ""


_NOTHING = {priority: RoutingHeaders(priority=priority) for priority in Priority}
_NO_HINTS = Hints()
_decode_metadata = msgspec.json.Decoder(_Metadata | None).decode
_decode_claude_user = msgspec.json.Decoder(_ClaudeUser).decode
_decode_text = msgspec.json.Decoder(str).decode
_BROKEN = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_headers(headers: Iterable[tuple[bytes, bytes]], caller: Caller) -> RoutingHeaders:
    """Raises `BadRequest` for an invalid value, and `Forbidden` for a class that is better than the
    caller's."""
    found = {name: value for name, value in headers if name in ROUTING_HEADERS}
    if not found:
        return _NOTHING[caller.priority]
    session, parent = _session(found)
    return RoutingHeaders(
        session,
        parent,
        _priority(found.get(HEADER_PRIORITY), caller),
        _deadline_s(found.get(HEADER_DEADLINE)),
        found.get(HEADER_DECISION, b"").strip().lower() in _YES,
    )


def hints(headers: RoutingHeaders, fields: Fields, path: str, caller: Caller, model: str) -> Hints:
    """The session that the request belongs to, by its headers or else by its body.

    Sessions are separated by caller, so that none can influence those of another, and by `model`,
    the one that serves the request, since each model's part of a session is warm on another node.
    """
    session, parent = headers.session, headers.parent
    if not session:
        session, named = _session_of_body(fields, path)
        parent = parent or named
    if not session and not parent:
        return _NO_HINTS
    scope = f"{caller.owner}/{model!r}/"
    return Hints(_name(scope, session), _name(scope, parent))


# --- headers ---------------------------------------------------------------------------------


def _session(found: Mapping[bytes, bytes]) -> tuple[str, str]:
    """(session, parent)"""

    def text(name: bytes) -> str:
        return found.get(name, b"").decode("latin-1").strip()

    explicit, parent = text(_SESSION), text(_PARENT)
    if explicit:
        return explicit, parent
    session, agent = text(_CLAUDE_SESSION), text(_CLAUDE_AGENT)
    if agent:
        return f"{session}/{agent}", parent or _agent_s_parent(session, text(_CLAUDE_PARENT))
    if session:
        return session, parent
    session, thread = text(_CODEX_SESSION), text(_CODEX_THREAD)
    if not thread or thread == session:
        return session, parent or text(_CODEX_PARENT)
    return thread, parent or text(_CODEX_PARENT) or session


def _agent_s_parent(session: str, parent: str) -> str:
    return f"{session}/{parent}" if parent else session


def _priority(value: bytes | None, caller: Caller) -> Priority:
    if value is None:
        return caller.priority
    header = HEADER_PRIORITY.decode()
    requested = _CLASSES.get(value.strip().lower())
    if requested is None:
        raise BadRequest(f"{header} must be interactive, default or batch.", param=header)
    if requested < caller.priority:
        best = caller.priority.name.lower()
        raise Forbidden(f"{header}: requests of this API key are of class {best} at best.")
    return requested


def _deadline_s(value: bytes | None) -> float:
    if value is None:
        return math.inf
    text = value.strip()
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not 0.0 < seconds <= MAX_DEADLINE_S:
        header = HEADER_DEADLINE.decode()
        raise BadRequest(
            f"{header} must be a number of seconds, more than 0 and at most {MAX_DEADLINE_S}.",
            param=header,
        )
    return seconds


# --- bodies ----------------------------------------------------------------------------------


def _session_of_body(fields: Fields, path: str) -> tuple[str, str]:
    """(session, parent)"""
    if dialect_of(path) is not ApiDialect.ANTHROPIC:
        session = _text(fields.get("prompt_cache_key"))
        return (session, "") if session else ("", _text(fields.get("user")))
    user = _text(_user_id(fields.get("metadata")))
    session = _session_of_claude(user)
    return (session, "") if session else ("", user)


def _session_of_claude(user: str) -> str:
    if not user.startswith("{"):
        return user.rpartition(_CLAUDE_MARK)[2] if _CLAUDE_MARK in user else ""
    try:
        return _decode_claude_user(user).session_id
    except _BROKEN:
        return ""


def _user_id(metadata: msgspec.Raw | None) -> msgspec.Raw | None:
    if metadata is None:
        return None
    try:
        known = _decode_metadata(metadata)
    except _BROKEN:
        return None  # the node will refuse it
    return known.user_id if known else None


def _text(raw: msgspec.Raw | None) -> str:
    """The value of a field; empty if it is no string."""
    if raw is None or not bytes(raw).startswith(b'"'):
        return ""
    try:
        return _decode_text(raw)
    except _BROKEN:
        return ""


def _name(scope: str, text: str) -> str:
    return scope + short(text) if text else ""


def short(text: str) -> str:
    """The name, or its hash if it is long."""
    if len(text) <= MAX_ID_CHARS:
        return text
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()
