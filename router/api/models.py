"""`/v1/models`: every name that a request may use, as its nodes tell of it."""

from collections.abc import Iterable

from node.protocol.messages import ModelState, ModelStatus
from node.protocol.models import ModelCard, model_body, models_body
from router.fleet.fleet import Fleet
from router.routing.model_names import Names, first_known
from router.types import Target

_NEAREST_FIRST = (
    ModelState.READY,
    ModelState.LOADING,
    ModelState.DRAINING,
    ModelState.ON_DISK,
    ModelState.FAILED,
)
"""How near a model is to its next answer."""


class Models:
    """The models of the fleet and their aliases, as callers see them."""

    def __init__(self, fleet: Fleet, names: Names, started_unix_s: int) -> None:
        self._fleet = fleet
        self._names = names
        self._created_s = started_unix_s

    def all(self) -> bytes:
        """The JSON of the list, by name."""
        cards = [self._card(name) for name in sorted(self._names.listed())]
        return models_body(cards, self._created_s)

    def one(self, name: str) -> bytes:
        """The JSON of one. Raises `UnknownModel` naming near names."""
        return model_body(self._card(name), self._created_s)

    def _card(self, name: str) -> ModelCard:
        statuses = self._statuses(first_known(self._names.route(name)))
        contexts = [each.context_tokens for each in statuses if each.context_tokens]
        states = {each.state for each in statuses}
        return ModelCard(
            name,
            min(contexts, default=None),
            _shared_capabilities(statuses),
            _first(each.tool_parser for each in statuses),
            _first(each.reasoning_parser for each in statuses),
            _first(state.value for state in _NEAREST_FIRST if state in states),
        )

    def _statuses(self, target: Target) -> list[ModelStatus]:
        """The model as each node that may serve it sees it."""
        return [
            each
            for view in self._fleet.snapshot
            if view.status is not None and target.is_on(view)
            for each in view.status.models
            if each.name == target.model
        ]


def _shared_capabilities(statuses: list[ModelStatus]) -> tuple[str, ...]:
    """What every node can do that tells what it can do: any of them may get the request."""
    told = [each.capabilities for each in statuses if each.capabilities]
    return tuple(each for each in told[0] if all(each in other for other in told)) if told else ()


def _first(names: Iterable[str]) -> str:
    return next((name for name in names if name), "")
