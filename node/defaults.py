"""Defaults from the settings, by model, for fields that a request does not set."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from node.request import TextRequest


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults of one model."""

    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of its chat template."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning; None: no limit."""

    def of(self, request: TextRequest, *, reasons: bool) -> TextRequest:
        """The request completed by the defaults. `reasons`: the model's reasoning is parsed;
        without that, and in a completion, there are no reasoning tokens to limit."""
        if request.messages is None or not (
            self.template_kwargs or self.thinking_tokens is not None
        ):
            return request
        template = request.template
        merged = {**self.template_kwargs, **template.kwargs}
        thinking = request.thinking_tokens
        if thinking is None and reasons:
            thinking = self.thinking_tokens
        return replace(request, template=replace(template, kwargs=merged), thinking_tokens=thinking)


class ModelDefaults:
    """The defaults of a node's models."""

    def __init__(
        self,
        template_kwargs: Sequence[tuple[str, Mapping[str, Any]]] = (),
        thinking_tokens: Sequence[tuple[str, int]] = (),
    ) -> None:
        """Pairs of a model, or empty for all models, and a value. A model's own variables override
        those for all, name by name, and later ones override earlier ones."""
        self._template_kwargs: dict[str, dict[str, Any]] = {}
        for model, variables in template_kwargs:
            self._template_kwargs.setdefault(model, {}).update(variables)
        self._thinking_tokens = dict(thinking_tokens)

    def of(self, name: str) -> Defaults:
        """The defaults of the model of that name."""
        everywhere = self._template_kwargs.get("", {})
        limit = self._thinking_tokens.get(name, self._thinking_tokens.get(""))
        return Defaults({**everywhere, **self._template_kwargs.get(name, {})}, limit)
