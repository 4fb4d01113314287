"""`/v1/models`: one shape that OpenAI's and Anthropic's clients read."""

from collections.abc import Iterable
from datetime import UTC, datetime

from node.protocol.messages import ModelStatus
from router.fleet import Fleet


class Models:
    """The models of the fleet and their aliases, as callers see them."""

    def __init__(self, fleet: Fleet, started_unix_s: int) -> None:
        self._fleet = fleet
        self._created_s = started_unix_s
        started = datetime.fromtimestamp(started_unix_s, UTC)
        self._created_at = started.strftime("%Y-%m-%dT%H:%M:%SZ")

    def all(self) -> dict[str, object]:
        """Every name that a request may use, by name."""
        names = sorted(self._fleet.names())
        return {
            "object": "list",
            "data": [self._shown(name) for name in names],
            "has_more": False,
            "first_id": names[0] if names else None,
            "last_id": names[-1] if names else None,
        }

    def one(self, name: str) -> dict[str, object]:
        """Raises `UnknownModel` naming near names."""
        self._fleet.resolve(name)
        return self._shown(name)

    def _shown(self, name: str) -> dict[str, object]:
        statuses = self._statuses(self._fleet.resolve(name))
        contexts = [each.context_tokens for each in statuses if each.context_tokens]
        context = min(contexts, default=None)
        return {
            "id": name,
            "object": "model",
            "created": self._created_s,
            "owned_by": "mlx-fleet",
            "type": "model",
            "display_name": name,
            "created_at": self._created_at,
            "context_window": context,
            "max_model_len": context,
            "capabilities": _shared_capabilities(statuses),
            "tool_call_parser": _first(each.tool_parser for each in statuses),
            "reasoning_parser": _first(each.reasoning_parser for each in statuses),
        }

    def _statuses(self, model: str) -> list[ModelStatus]:
        """The model as each node that has it sees it."""
        return [
            each
            for view in self._fleet.snapshot
            if view.status is not None
            for each in view.status.models
            if each.name == model
        ]


def _shared_capabilities(statuses: list[ModelStatus]) -> list[str]:
    """What every node can do that tells what it can do: any of them may get the request."""
    told = [each.capabilities for each in statuses if each.capabilities]
    return [each for each in told[0] if all(each in other for other in told)] if told else []


def _first(names: Iterable[str]) -> str | None:
    return next((name for name in names if name), None)
