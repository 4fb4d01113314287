"""Retry times and failures of actions, and what was last sent to each node. The clock is passed
in."""

from collections.abc import Callable, Mapping

from node.protocol.lifecycle import POLICIES_LAPSE_S
from router.lifecycle.reconcile import Action, PushPolicies

RETRY_S = 5.0
"""Seconds until an action that a node did not perform is retried."""
RENEW_S = POLICIES_LAPSE_S / 10
"""Seconds until a node is sent its policies again, since it forgets them after a while."""

_Kind = tuple[str, str, str]
"""(action, node id, model)."""


class Attempts:
    """Owns the retry times and last failures of actions."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._retry_at_s: dict[_Kind, float] = {}
        self._failures: dict[_Kind, str] = {}

    def __len__(self) -> int:
        return len(self._retry_at_s)

    def must_wait(self, action: Action, *, is_new: bool) -> bool:
        """Returns True if the action must wait for its retry time; one that `is_new` only if it
        failed before."""
        kind = _kind(action)
        if is_new and kind not in self._failures:
            return False
        return self._retry_at_s.get(kind, 0.0) > self._clock()

    def on_done(self, action: Action) -> None:
        """Delays a repetition of the action, since the node's status may be older than it."""
        self._failures.pop(_kind(action), None)
        self._retry_at_s[_kind(action)] = self._clock() + RETRY_S

    def on_failed(self, action: Action, why: str, retry_s: float) -> bool:
        """Records the failure; returns True if the previous attempt had not failed."""
        kind = _kind(action)
        is_first = kind not in self._failures
        self._failures[kind] = why
        self._retry_at_s[kind] = self._clock() + retry_s
        return is_first

    def failure(self, what: type[Action], model: str, node_id: str) -> str | None:
        """Returns the reason why its last attempt failed, if it did; without a node id, on any
        node."""
        for (name, where, of), why in self._failures.items():
            if (name, of) == (what.__name__, model) and node_id in ("", where):
                return why
        return None

    def forget_node(self, node_id: str) -> None:
        for kind in [kind for kind in self._retry_at_s if kind[1] == node_id]:
            del self._retry_at_s[kind]
            self._failures.pop(kind, None)


class Pushes:
    """Owns what was last sent to each node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sent: dict[str, tuple[PushPolicies, float]] = {}

    def fresh(self) -> Mapping[str, PushPolicies]:
        """Returns the pushes that need not be repeated, by node."""
        since_s = self._clock() - RENEW_S
        return {node_id: push for node_id, (push, at_s) in self._sent.items() if at_s > since_s}

    def on_sent(self, push: PushPolicies) -> None:
        self._sent[push.node_id] = push, self._clock()

    def forget_node(self, node_id: str) -> None:
        self._sent.pop(node_id, None)


def _kind(action: Action) -> _Kind:
    return (
        type(action).__name__,
        action.node_id,
        "" if isinstance(action, PushPolicies) else action.model,
    )
