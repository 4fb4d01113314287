"""What `/admin/models/pull` and its like take and answer; the command line reads the same types."""

from router.api.admin_views import Asked, Name, Shown


class PullAsked(Asked):
    """Body of a pull."""

    model: Name
    node: Name | None = None
    """None: where it has begun, else where most disk is free."""
    repo: Name | None = None
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
