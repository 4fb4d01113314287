"""Conditions that need somebody, as sentences that say what to do."""

from collections.abc import Iterator
from dataclasses import dataclass

from router.api.admin.report_views import StatusRow
from router.api.admin.views import NodeRow
from router.commands import wording
from router.commands.access.reports import registry_trouble
from router.commands.nodes import NO_NODES, notes
from router.states import ACTIVE, CORDONED, KIND_OPENAI

LONG_WAIT_S = 30.0
"""Age from which on a waiting request is worth a warning."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One condition; `subject` is a node or a model, or empty."""

    subject: str
    text: str
    style: str = "yellow"

    @property
    def line(self) -> str:
        return f"{self.subject}: {self.text}" if self.subject else self.text


def warnings(status: StatusRow) -> list[Notice]:
    """The warnings, the registry's first."""
    return [
        *(Notice("", sentence, "red") for sentence in registry_trouble(status.registry)),
        *(each for row in status.nodes for each in _of_node(row, status.version)),
        *(
            Notice(
                row.model,
                f"{row.node} could not load it: {row.reason} `router load {row.model} --node "
                f"{row.node}` tries again.",
                "red",
            )
            for row in status.failed
        ),
        *_of_queue(status),
    ]


def hint(status: StatusRow) -> str:
    """The next step where the fleet cannot serve anything yet; empty if it can."""
    if not status.nodes:
        return NO_NODES
    if not any(row.reachable for row in status.nodes):
        return "No node can be reached; `router doctor` says why."
    if not status.known_models:
        return (
            "The fleet has no model yet; `router models pull OWNER/NAME` copies one from the hub "
            "to a node."
        )
    if not status.loaded and not any(row.kind == KIND_OPENAI for row in status.nodes):
        return (
            "No model is in memory; the first request for one loads it: `router chat MODEL`, with "
            "a name that `router models` lists."
        )
    return ""


def _of_node(row: NodeRow, own_version: str) -> Iterator[Notice]:
    for note, style in notes(row):
        if style:
            yield Notice(row.name, note, style)
    if not row.reachable:
        yield Notice(row.name, "it serves nothing now; `router doctor` says why.", "red")
    if row.state != ACTIVE:
        end = f"uncordon {row.name}" if row.state == CORDONED else f"maintenance {row.name} --off"
        yield Notice(
            row.name, f"it gets no new requests, since an admin wants it; `router {end}` ends it."
        )
    if row.kind != KIND_OPENAI and row.version not in (None, own_version):
        yield Notice(
            row.name,
            f"it runs mlx-fleet {row.version}, this router {own_version}; `router "
            "upgrade-plan` shows how to upgrade.",
        )


def _of_queue(status: StatusRow) -> Iterator[Notice]:
    for row in status.queue:
        if row.oldest_s >= LONG_WAIT_S:
            yield Notice(
                row.model,
                f"{wording.counted(row.waiting, 'request')} of class {row.priority} "
                f"{'waits' if row.waiting == 1 else 'wait'}, the oldest for "
                f"{wording.span(row.oldest_s)}: all nodes that have it are busy. `router models "
                f"pull {row.model} --node NODE` puts it on one more.",
            )
