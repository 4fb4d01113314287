"""The frozen rows that the registry hands out; times are seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A Mac that the router dials. `kind` is "agent" or "openai"; `credential` is secret text.
    `max_rows` is the number of requests that it serves at once, if an admin has set it."""

    id: str
    name: str
    url: str
    kind: str
    credential: str = field(repr=False)
    created_at_s: float
    max_rows: int | None = None
    state: str = "active"
    """The state that an admin has set: "active", "cordoned" or "maintenance"."""
    accepted: tuple[str, ...] | None = None
    """Models of a server of kind "openai" that requests may go to; None for an agent, all of whose
    models may be used."""
    prices: dict[str, float] | None = None
    """Prices of a paid server for a million tokens: "input", "cached", "output"; None: it is
    free."""
    wake_mac: str | None = None
    """The MAC address at which it is woken, if an admin has set one."""
    macs: tuple[str, ...] | None = None
    """The MAC addresses that its agent reported last; None if it never did."""
    wakes: bool = False
    """Requests may wake it."""


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model that some node once reported; None where no node has reported the value yet."""

    name: str
    context_tokens: int | None
    weight_bytes: int | None
    first_seen_at_s: float
    last_seen_at_s: float


@dataclass(frozen=True, slots=True)
class AliasTarget:
    """A model that an alias may mean, with defaults for fields that a request does not set."""

    model: str
    defaults: dict[str, Any] = field(default_factory=dict)
    """Top-level fields of the request, JSON values."""


@dataclass(frozen=True, slots=True)
class AliasRecord:
    """A name, or a pattern of names with `*`, that clients may use for the first fit target."""

    name: str
    targets: tuple[AliasTarget, ...]
    created_at_s: float
    selector: str = "first"
    """"first", "warm" or "spillover"."""
    spill_at: int | None = None
    """Requests in flight on a target from which on the next target is used, for "spillover"."""


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """An admin's residency policy for a model on a node, or on every node (empty node_id)."""

    model: str
    node_id: str
    pinned: bool
    keep_alive_s: float | None
    """Idle seconds until the model is unloaded. 0: never; None: the node's own setting applies."""


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """Times at which a model is loaded and unloaded, on a node or on the best one (empty node_id).

    Cron lines of five fields in `timezone`. `load_fired_s` and `unload_fired_s` are the due times
    that passed last; `pending` is the action of them, "load" or "unload", that is not done yet.
    """

    id: str
    model: str
    node_id: str
    load_cron: str | None
    unload_cron: str | None
    timezone: str
    created_at_s: float
    load_fired_s: float | None = None
    unload_fired_s: float | None = None
    pending: str | None = None


@dataclass(frozen=True, slots=True)
class ResidencyRecord:
    """A model on a node, in the state the node last reported, since `since_s`."""

    node_id: str
    model: str
    state: str
    weight_bytes: int
    since_s: float


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key: its visible prefix and its hex SHA-256, never the key itself.

    `priority` is the name of the best class that its requests may have. `salt` is secret text that
    separates its prefixes from those of all others; empty: it shares them.
    """

    id: str
    name: str
    prefix: str
    digest: str
    scopes: tuple[str, ...]
    created_at_s: float
    expires_at_s: float | None
    revoked_at_s: float | None
    priority: str = "default"
    salt: str = field(default="", repr=False)
    paid_budget: float | None = None
    """Most that its requests to paid servers may cost in a calendar month (UTC); None: it may use
    none."""
    team_id: str | None = None
    models: tuple[str, ...] | None = None
    """Models and aliases that it may use, by name or by pattern with `*`; None: all."""
    limits: dict[str, int] = field(default_factory=dict)
    """Its limits by name; one that is not set is absent."""
    old_digest: str | None = None
    """Digest of its secret before the last rotation, which is accepted until `old_until_s`."""
    old_prefix: str | None = None
    old_until_s: float | None = None
    rotated_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class TeamRecord:
    """A team, whose limits its keys share. A deleted team is kept for the usage of its keys."""

    id: str
    name: str
    limits: dict[str, int]
    created_at_s: float
    deleted_at_s: float | None = None


class UsageRecord(msgspec.Struct, frozen=True):
    """One finished request as its node reported it. (node_id, request_id) is unique, and a
    request's later attempts are `ID.2` and so on. The node_id is empty if the client disconnected
    before the request had a node.

    `instance_id` and `seq` name the event; token counts and times are None if the node could not
    report them.
    """

    request_id: str
    node_id: str
    instance_id: str
    seq: int
    key_id: str
    model: str
    reason: str
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None
    queue_s: float | None
    ttft_s: float | None
    prefill_s: float | None
    decode_s: float | None
    finished_at_s: float
    cost: float | None = None
    """Cost at a paid server."""


@dataclass(frozen=True, slots=True)
class UsageTotal:
    """Sums over one group of requests; a token count that a node never reported counts as 0. What
    the requests are not grouped by is None."""

    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost: float | None = None
    """Cost at paid servers; None if none was used."""
    key_id: str | None = None
    team_id: str | None = None
    """The team that the key belongs to now; empty: none."""
    model: str | None = None
    node_id: str | None = None
    """Empty: no node had the request."""
    day: int | None = None
    """Number of the calendar day, in UTC."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One entry of the audit log; ids grow in the order of writing."""

    at_s: float
    actor: str
    """Name of the key; or what did it in the router itself."""
    verb: str
    subject: str
    detail: str
    client: str = ""
    """Address that the request came from; empty: the router itself did it."""
    outcome: str = "done"
    """"done", or the code of the error that it ended with."""
    id: int = 0
    """0 before the entry is stored."""
