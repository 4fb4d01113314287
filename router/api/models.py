"""`/v1/models`: all names that a request may use, with what nodes report of their models."""

from collections.abc import Iterable

from node.protocol.messages import ModelState, ModelStatus
from node.protocol.models import ModelCard, model_body, models_body
from node.protocol.ollama.models import OllamaModel
from router.fleet.fleet import Fleet
from router.routing.model_names import Names, Patterns, first_known
from router.types import Target

_NEAREST_FIRST = (
    ModelState.READY,
    ModelState.LOADING,
    ModelState.DRAINING,
    ModelState.ON_DISK,
    ModelState.FAILED,
)
"""States of a model, the one nearest to serving first."""


class Models:
    """The fleet's models and aliases, as clients see them."""

    def __init__(self, fleet: Fleet, names: Names, started_unix_s: int) -> None:
        self._fleet = fleet
        self._names = names
        self._created_s = started_unix_s

    def all(self, allowed: Patterns | None = None) -> bytes:
        """Returns the list as JSON, sorted by name; only names that are `allowed`, if that is not
        None."""
        cards = [self._card(name) for name in sorted(self._names.listed(allowed))]
        return models_body(cards, self._created_s)

    def one(self, name: str, allowed: Patterns | None = None) -> bytes:
        """Returns one model as JSON. Raises `UnknownModel`, whose message suggests similar
        names."""
        return model_body(self._card(name, allowed), self._created_s)

    def ollama(self, allowed: Patterns | None = None) -> list[OllamaModel]:
        """Lists the models for Ollama's dialect, as `all` does."""
        return [self._ollama(name) for name in sorted(self._names.listed(allowed))]

    def ollama_one(self, name: str, allowed: Patterns | None = None) -> OllamaModel:
        """Returns one of them, by its name with or without tag. Raises `UnknownModel`."""
        return self._ollama(self._names.untagged(name), allowed)

    def _ollama(self, name: str, allowed: Patterns | None = None) -> OllamaModel:
        statuses = self._statuses(first_known(self._names.route(name, allowed)))
        return OllamaModel(self._card(name), statuses)

    def _card(self, name: str, allowed: Patterns | None = None) -> ModelCard:
        statuses = self._statuses(first_known(self._names.route(name, allowed)))
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
        """Lists the model's status on each node that may serve it."""
        return [
            each
            for view in self._fleet.snapshot
            if target.is_on(view) and (each := view.model(target.model)) is not None
        ]


def _shared_capabilities(statuses: list[ModelStatus]) -> tuple[str, ...]:
    """Returns the capabilities that every reporting node has, since any of them may serve the
    request."""
    reported = [each.capabilities for each in statuses if each.capabilities]
    return (
        tuple(each for each in reported[0] if all(each in other for other in reported))
        if reported
        else ()
    )


def _first(names: Iterable[str]) -> str:
    return next((name for name in names if name), "")
