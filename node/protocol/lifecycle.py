"""Messages by which a router manages the models of a node agent.

All paths but `PATH_FILES` need the control token. A node that pulls from a peer has a ticket
instead, which is valid for one model. Its manifest came through the router, so that the peer's
bytes need not be trusted.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from node.protocol.bounds import MAX_MODELS, Count, Id, Name, Seconds, Word

PATH_UNLOAD = "/fleet/unload"
PATH_POLICIES = "/fleet/policies"
PATH_PULL = "/fleet/pull"
PATH_PULL_CANCEL = "/fleet/pull/cancel"
PATH_REMOVE = "/fleet/remove"
PATH_SHARE = "/fleet/share"
PATH_CLEAR_CACHE = "/fleet/cache/clear"
PATH_FILES = "/fleet/files"
"""`GET` with `model` and `path` in the query, and a byte range."""

POLICIES_LAPSE_S = 600.0
"""Seconds after a router's last push until the agent drops that router's policies."""

Source = Annotated[str, Meta(max_length=1024)]


class UnloadCommand(msgspec.Struct, frozen=True):
    """Body of `PATH_UNLOAD`. The response is 409 if the model serves requests or a condition is not
    met: only the agent can check both in the same moment in which it acts."""

    model: Name
    generation: Count | None = None
    """Unload only this load of the model."""
    min_idle_s: Seconds = 0.0
    """Unload only if the model has been idle for this long. This is an unload because of idleness,
    which a pin prevents."""


class ModelPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """A router's policy for the residency of one model."""

    pinned: bool = False
    keep_alive_s: Seconds | None = None
    """Idle seconds until the model is unloaded. 0: never; None: the node's own setting applies."""


class Policies(msgspec.Struct, frozen=True, omit_defaults=True):
    """Body of `PATH_POLICIES`: all policies of one router, which replace its earlier ones.

    The agent applies them until it ends, the router sends others, or has sent none for
    `POLICIES_LAPSE_S`. Of several routers, the one that keeps a model longer decides.
    """

    router_id: Id
    models: Annotated[dict[Name, ModelPolicy], Meta(max_length=10_000)]
    in_maintenance: bool = False
    """The node is under maintenance: no pin has an effect, neither a router's nor one in the node's
    own settings, and nothing is loaded for one."""


class ManifestFile(msgspec.Struct, frozen=True):
    """One file of a model, with the size and hash that it must have."""

    path: Annotated[str, Meta(max_length=1024)]
    """Path below the model's folder, with `/`."""
    size_bytes: Count
    sha256: Annotated[str, Meta(max_length=64)]
    """SHA-256 in hexadecimal."""


class Share(msgspec.Struct, frozen=True):
    """Response of `PATH_SHARE`, whose body is a `ModelCommand`: the files that a peer may fetch,
    and the ticket for them."""

    ticket: Word
    source: Source
    """Origin of the model as the store records it."""
    files: Annotated[tuple[ManifestFile, ...], Meta(max_length=10_000)]


class Peer(msgspec.Struct, frozen=True):
    """Another node that has the model."""

    url: Annotated[str, Meta(max_length=2048)]
    share: Share
    certificate: Annotated[str, Meta(max_length=8192)] = ""
    """The only one, in PEM, that the peer may have; empty for a peer over plain HTTP."""


class PullCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Body of `PATH_PULL`. The response is 202 as soon as the pull has begun or continues; the
    node's status reports its progress.

    An interrupted pull resumes by itself, also at the agent's next start. A pull from a peer
    cannot, since its ticket has expired: it reports `wants_peer` and resumes with a router's next
    command.
    """

    model: Name
    """The model's name on the node."""
    repo_id: Word = ""
    """Repository on the hub; empty for a pull from the peer only."""
    revision: Word | None = None
    token: Annotated[str, Meta(max_length=4096)] | None = None
    """Access token for the hub. It is kept in memory only."""
    peer: Peer | None = None
    """Peer that is tried first; the hub follows if it fails and there is a `repo_id`."""
    resumes: bool = False
    """Only resume a pull that reports `wants_peer`; do not start one that was cancelled in the
    meantime."""


class ClearCommand(msgspec.Struct, frozen=True):
    """Body of `PATH_CLEAR_CACHE`."""

    model: Name | None = None
    """The model whose cache is cleared; None: all."""


class ClearedCache(msgspec.Struct, frozen=True):
    """Response of `PATH_CLEAR_CACHE`: the cache entries that a node's engines dropped."""

    models: Annotated[tuple[Name, ...], Meta(max_length=MAX_MODELS)]
    memory_bytes: Count
    disk_bytes: Count
    skipped: Annotated[tuple[Name, ...], Meta(max_length=MAX_MODELS)] = ()
    """Models that were loading, or whose engines did not respond. Their caches were not cleared."""
