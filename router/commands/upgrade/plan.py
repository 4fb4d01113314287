"""The order in which router and nodes are upgraded, and what each step means for requests."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from packaging.version import InvalidVersion, Version

from router.api.admin.report_views import StatusRow
from router.api.admin.views import NodeRow
from router.states import ACTIVE, KIND_OPENAI
from serving.installer import UPGRADES

DRAIN_DEADLINE = "10m"
BACKUP_FILE = "before-upgrade.backup"
_NOT_SERVING = ("pulling", "failed")
_OLDEST = Version("0")


@dataclass(frozen=True, slots=True)
class NodeStep:
    """The upgrade of one node."""

    node: str
    version: str | None
    """None if the node has not responded yet."""
    protocol: int | None
    installed_by: str
    """Empty if the node does not say."""
    reachable: bool
    error: str | None
    only_here: tuple[str, ...]
    """Models that no other node serves meanwhile."""
    commands: tuple[str, ...]
    """Commands of this machine's shell, in order; those of the node's machine begin with `ssh`."""


@dataclass(frozen=True, slots=True)
class RouterStep:
    """The upgrade of the router."""

    version: str
    protocol: int
    oldest_protocol: int
    installed_by: str
    commands: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """All steps to a version, in order: the router first, then one node after another."""

    version: str
    router: RouterStep
    """Without commands if it runs that version already."""
    nodes: tuple[NodeStep, ...]
    """Nodes that run another version."""
    done: tuple[str, ...]
    """Nodes that run it already."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_of(status: StatusRow, installed: str, wanted: str | None = None) -> UpgradePlan:
    """Returns the plan to the version `wanted`, else to the newest that is in the fleet or
    `installed` on the router's machine. Raises `ValueError` with a sentence if `wanted` is no
    version, or older than one of them."""
    nodes = [row for row in status.nodes if row.kind != KIND_OPENAI]
    found = [status.version, installed, *(row.version or "" for row in nodes)]
    version = max(found, key=order_of)
    if wanted is not None:
        version = _checked(wanted, version)
    behind = [row for row in nodes if order_of(row.version or "") != order_of(version)]
    steps = [_node_step(row, status.nodes) for row in behind]
    # First a node that others stand in for: if the new version fails there, nothing is missed.
    steps.sort(key=lambda step: (not step.reachable, bool(step.only_here), step.node))
    left = {step.node for step in steps}
    return UpgradePlan(
        version,
        _router_step(status, version),
        tuple(steps),
        tuple(row.name for row in nodes if row.name not in left),
    )


def _checked(wanted: str, newest: str) -> str:
    if order_of(wanted) == _OLDEST:
        raise ValueError(f"{wanted!r} is not a version, such as 0.2.0.")
    if order_of(wanted) < order_of(newest):
        raise ValueError(
            f"{wanted} is older than {newest}, which runs in the fleet or is installed here. There "
            "is no way back but a backup from before: an older router does not open a newer "
            "registry."
        )
    return wanted


def order_of(version: str) -> Version:
    """Orders versions; one that is none is the oldest."""
    try:
        return Version(version)
    except InvalidVersion:
        return _OLDEST


def _router_step(status: StatusRow, version: str) -> RouterStep:
    commands: tuple[str, ...] = ()
    if order_of(status.version) != order_of(version):
        commands = (
            f"router backup {BACKUP_FILE}",
            _upgrade(status.installed_by),
            "restart `router serve`, or its service",
        )
    return RouterStep(
        status.version, status.protocol, status.oldest_protocol, status.installed_by, commands
    )


def _node_step(row: NodeRow, rows: Sequence[NodeRow]) -> NodeStep:
    host = urlsplit(row.url).hostname or row.url
    return NodeStep(
        row.name,
        row.version,
        row.protocol,
        row.installed_by,
        row.reachable,
        row.error,
        tuple(_only_on(row, rows)),
        (
            f"router drain {row.name} --deadline {DRAIN_DEADLINE}",
            f"on {host}: {_upgrade(row.installed_by)}",
            f"on {host}: restart `node-agent serve`, or its service",
            f"router uncordon {row.name}",
        ),
    )


def _only_on(row: NodeRow, rows: Sequence[NodeRow]) -> Iterator[str]:
    """Yields models that no other node would serve."""
    others = {
        model.name
        for other in rows
        if other.name != row.name and other.reachable and other.state == ACTIVE
        for model in other.models
        if model.state not in _NOT_SERVING
    }
    for model in row.models:
        if model.name not in others and model.state not in _NOT_SERVING:
            yield model.name


def _upgrade(installed_by: str) -> str:
    return UPGRADES.get(installed_by, "upgrade mlx-fleet as it was installed")
