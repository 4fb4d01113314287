"""What a router and a node agent say to each other of models that come and go.

All paths but `PATH_FILES` take the control token. Who pulls from a peer has a ticket instead, good
for one model; the manifest came through the router, so that the bytes need not be trusted.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from node.protocol.bounds import Count, Id, Name, Seconds, Word

PATH_UNLOAD = "/fleet/unload"
PATH_POLICIES = "/fleet/policies"
PATH_PULL = "/fleet/pull"
PATH_PULL_CANCEL = "/fleet/pull/cancel"
PATH_REMOVE = "/fleet/remove"
PATH_SHARE = "/fleet/share"
PATH_FILES = "/fleet/files"
"""`GET`, with `model` and `path` in the query and a range of bytes."""

HEADER_TICKET = "x-fleet-ticket"

POLICIES_LAPSE_S = 600.0
"""So long after a router's last push the agent forgets what it asked."""

Source = Annotated[str, Meta(max_length=1024)]


class UnloadCommand(msgspec.Struct, frozen=True):
    """Body of `PATH_UNLOAD`: 409 where the model serves requests, and where a condition does not
    hold: the agent alone sees both at the same moment as it acts."""

    model: Name
    generation: Count | None = None
    """Only this load of it."""
    min_idle_s: Seconds = 0.0
    """Only where it has been idle for so long; then it goes because nobody wants it, and so not
    where it is pinned."""


class ModelPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a router asks of one model's residency."""

    pinned: bool = False
    keep_alive_s: Seconds | None = None
    """0: for ever; None: as the node's own settings say."""


class Policies(msgspec.Struct, frozen=True, omit_defaults=True):
    """Body of `PATH_POLICIES`: all that one router asks, in place of what it asked before. The
    agent keeps them until it ends, the router sends others, or has sent none for
    `POLICIES_LAPSE_S`; of several routers the one that keeps a model longer has its way."""

    router_id: Id
    models: Annotated[dict[Name, ModelPolicy], Meta(max_length=10_000)]
    rests: bool = False
    """The node is under maintenance: nothing is loaded for a pin, and no pin holds, those of the
    node's own settings neither."""


class ManifestFile(msgspec.Struct, frozen=True):
    """One file of a model, as it is to arrive."""

    path: Annotated[str, Meta(max_length=1024)]
    """Below the model's folder, with `/`."""
    size_bytes: Count
    sha256: Annotated[str, Meta(max_length=64)]
    """Hex."""


class Share(msgspec.Struct, frozen=True):
    """Answer of `PATH_SHARE` (body: `ModelCommand`): what a peer may fetch, and how."""

    ticket: Word
    expires_in_s: Seconds
    source: Source
    """Where the model came from, as the store keeps it."""
    files: Annotated[tuple[ManifestFile, ...], Meta(max_length=10_000)]


class Peer(msgspec.Struct, frozen=True):
    """Another node that has the model."""

    url: Annotated[str, Meta(max_length=2048)]
    share: Share


class PullCommand(msgspec.Struct, frozen=True, omit_defaults=True):
    """Body of `PATH_PULL`. Answered with 202 as soon as the pull has begun, or goes on; the status
    tells how far it is. A pull that is cut short goes on by itself, after its agent's end at the
    next start, but for one from a peer, whose ticket has expired: that `wants_peer`, and goes on
    with the next order of a router."""

    model: Name
    """The name that it gets on the node."""
    repo_id: Word = ""
    """On the hub; empty: from the peer only."""
    revision: Word | None = None
    token: Annotated[str, Meta(max_length=4096)] | None = None
    """Of the hub. Kept in memory only."""
    peer: Peer | None = None
    """Asked first; the hub where it fails and there is a `repo_id`."""
    resumes: bool = False
    """Only to go on with one that `wants_peer`: none is begun that was cancelled meanwhile."""
