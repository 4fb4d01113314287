"""Bodies and rows of `/admin/models/pull` and related paths; the command line reads the same
types."""

import re
from typing import Annotated

from pydantic import AfterValidator

from router.api.admin.views import Name, RequestBody, Row


def _stored(name: str) -> str:
    if not _STORED.fullmatch(name) or ".." in name:
        raise ValueError("it is no NAME or OWNER/NAME of letters, digits, dots, - and _")
    return name


_STORED = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
StoredName = Annotated[Name, AfterValidator(_stored)]
"""Name of a model on a disk, or at the hub."""


class PullBody(RequestBody):
    """Body of a pull."""

    model: StoredName
    node: Name | None = None
    """If None, the node where the pull has begun, else the one with the most free disk."""
    repo: StoredName | None = None
    """Repository at the hub; the model's name if None."""
    revision: Name | None = None
    hub_token: str = ""
    from_node: Name | None = None
    """If None, a node that has the model, else the hub."""


class PullStarted(Row):
    """A pull that has started."""

    model: str
    node: str
    source: str
    """Source in words; empty if the node has the model already."""
    since_s: float
    """Start of the pull by the node's clock; reports with an earlier time are about another
    pull."""
    note: str = ""
    """Reason why a node that has the model is not the source."""


class RemoveBody(RequestBody):
    """Body of a removal."""

    model: Name
    node: Name
