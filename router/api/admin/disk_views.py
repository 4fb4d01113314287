"""What `/admin/models/pull` and its like take and answer; the command line reads the same types."""

import re
from typing import Annotated

from pydantic import AfterValidator

from router.api.admin.views import Asked, Name, Shown


def _stored(name: str) -> str:
    if not _STORED.fullmatch(name) or ".." in name:
        raise ValueError("it is no NAME or OWNER/NAME of letters, digits, dots, - and _")
    return name


_STORED = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
Stored = Annotated[Name, AfterValidator(_stored)]
"""The name of a model on a disk, or at the hub."""


class PullAsked(Asked):
    """Body of a pull."""

    model: Stored
    node: Name | None = None
    """None: where it has begun, else where most disk is free."""
    repo: Stored | None = None
    """On the hub; None: the model's name, where that can be one."""
    revision: Name | None = None
    hub_token: str = ""
    from_node: Name | None = None
    """None: a node that has the model, else the hub."""


class PullStarted(Shown):
    """A pull that goes on by itself."""

    model: str
    node: str
    source: str
    """In words; empty where the model is there already."""
    since_s: float
    """When the node began it, by its own clock: what it tells of earlier pulls is older."""
    note: str = ""
    """Why a node that has the model is not its source."""


class RemoveAsked(Asked):
    """Body of a removal."""

    model: Name
    node: Name
