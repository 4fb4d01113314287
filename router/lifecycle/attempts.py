"""When an action may be tried again, and why it failed; what nodes were told, and when they have to
hear it again. The clock is given."""

from collections.abc import Callable, Mapping

from node.protocol.lifecycle import POLICIES_LAPSE_S
from router.lifecycle.reconcile import Action, Push

RETRY_S = 5.0
"""Until what a node did not do is asked of it again."""
RENEW_S = POLICIES_LAPSE_S / 10
"""Until a node is told again what is asked of it, which it would forget."""

_Kind = tuple[str, str, str]
"""What, on which node, with which model."""


class Attempts:
    """Owner of what is known of each kind of action from when it was tried last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._retry_at_s: dict[_Kind, float] = {}
        self._failures: dict[_Kind, str] = {}

    def __len__(self) -> int:
        return len(self._retry_at_s)

    def must_wait(self, action: Action, *, is_new: bool) -> bool:
        """One that `is_new` waits only where one like it failed."""
        kind = _kind(action)
        if is_new and kind not in self._failures:
            return False
        return self._retry_at_s.get(kind, 0.0) > self._clock()

    def on_done(self, action: Action) -> None:
        """It is not tried at once again: what the node tells of itself may be older."""
        self._failures.pop(_kind(action), None)
        self._retry_at_s[_kind(action)] = self._clock() + RETRY_S

    def on_failed(self, action: Action, why: str, retry_s: float) -> bool:
        """Whether that is news."""
        kind = _kind(action)
        is_news = kind not in self._failures
        self._failures[kind] = why
        self._retry_at_s[kind] = self._clock() + retry_s
        return is_news

    def failure(self, what: type[Action], model: str, node_id: str) -> str | None:
        """Why it failed where it was tried last and did; without a node, on any."""
        for (name, where, of), why in self._failures.items():
            if (name, of) == (what.__name__, model) and node_id in ("", where):
                return why
        return None

    def forget_node(self, node_id: str) -> None:
        for kind in [kind for kind in self._retry_at_s if kind[1] == node_id]:
            del self._retry_at_s[kind]
            self._failures.pop(kind, None)


class Pushes:
    """Owner of what each node has been told last."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: dict[str, tuple[Push, float]] = {}

    def fresh(self) -> Mapping[str, Push]:
        """What need not be said again, by node."""
        since_s = self._clock() - RENEW_S
        return {node_id: push for node_id, (push, at_s) in self._told.items() if at_s > since_s}

    def on_told(self, push: Push) -> None:
        self._told[push.node_id] = push, self._clock()

    def forget_node(self, node_id: str) -> None:
        self._told.pop(node_id, None)


def _kind(action: Action) -> _Kind:
    return type(action).__name__, action.node_id, "" if isinstance(action, Push) else action.model
