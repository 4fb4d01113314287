"""The thinking budget under the names that several servers use, and other vendors' object
`thinking`."""

from typing import Annotated

from pydantic import Field

from node.dialects.fields.field_table import MAX_INT, Lenient, unsupported
from node.errors import BadRequest

NO_LIMIT = -1
"""The number by which clients say "no limit"."""
Budget = Annotated[int, Field(ge=NO_LIMIT)]
"""Most tokens of reasoning, or `NO_LIMIT`."""


class ThinkingFields(Lenient):
    """The thinking budget, under the names that several servers use."""

    max_thinking_tokens: Budget | None = None
    thinking_token_budget: Budget | None = None
    thinking_budget: Budget | None = None
    reasoning_max_tokens: Budget | None = None


THINKING_FIELDS = tuple(ThinkingFields.model_fields)
"""Names of the budget's fields."""

_SAME = "Another name of `max_thinking_tokens`; two different values contradict."
THINKING_NOTES = {
    **dict.fromkeys(THINKING_FIELDS, _SAME),
    "max_thinking_tokens": (
        "Most tokens of reasoning, from 0; then its end is forced and the content follows. -1: no "
        "limit. null or missing: the model's settings decide."
    ),
}
"""Notes for a dialect's `FieldTable`."""


class ChatThinkingBody(Lenient):
    """The object `thinking` that some vendors have in chat requests."""

    type: str
    budget_tokens: Budget | None = None

    @property
    def is_on(self) -> bool:
        """True unless `type` is `disabled`. Raises `Unsupported` for an unknown type."""
        if self.type not in ("enabled", "disabled", "adaptive"):
            raise unsupported(f"thinking of type {self.type!r}", "thinking.type")
        return self.type != "disabled"


def thinking_tokens(fields: ThinkingFields, **others: int | None) -> int | None:
    """Returns the budget in tokens, from `fields` and from `others`, which are keyed by path; None
    for the model's default. Raises `BadRequest` if two of them contradict each other."""
    named = {name: getattr(fields, name) for name in THINKING_FIELDS}
    given = {name: value for name, value in {**named, **others}.items() if value is not None}
    if not given:
        return None
    (first, limit), *rest = given.items()
    for name, value in rest:
        if value != limit:
            raise BadRequest(f"{name} contradicts {first}.", param=name)
    return budget_tokens(limit)


def budget_tokens(budget: int) -> int:
    """Converts a `Budget` to that of a `TextRequest`: no limit becomes `MAX_INT`, which overrides
    the model's default."""
    return MAX_INT if budget == NO_LIMIT else min(budget, MAX_INT)
