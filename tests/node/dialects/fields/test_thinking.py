"""The thinking budget has several names and one meaning."""

from typing import Any

import pytest

from node.dialects.fields.field_table import MAX_INT
from node.dialects.fields.thinking import (
    THINKING_FIELDS,
    ChatThinkingBody,
    ThinkingFields,
    thinking_tokens,
)
from node.errors import BadRequest, Unsupported


def fields(**given: Any) -> ThinkingFields:
    return ThinkingFields.model_validate(given)


@pytest.mark.parametrize("name", THINKING_FIELDS)
@pytest.mark.parametrize(
    ("value", "tokens"), [(None, None), (0, 0), (17, 17), (-1, MAX_INT), (10**30, MAX_INT)]
)
def test_each_name_means_the_same(name: str, value: object, tokens: object) -> None:
    assert thinking_tokens(fields(**{name: value})) == tokens


def test_the_same_value_may_be_given_twice() -> None:
    given = fields(max_thinking_tokens=5, thinking_budget=5)
    assert (
        thinking_tokens(given, **{"reasoning.max_tokens": 5, "thinking.budget_tokens": None}) == 5
    )


def test_two_values_contradict() -> None:
    with pytest.raises(BadRequest) as caught:
        thinking_tokens(fields(max_thinking_tokens=5, thinking_budget=6))
    assert caught.value.param == "thinking_budget"
    with pytest.raises(BadRequest) as caught:
        thinking_tokens(fields(thinking_budget=5), **{"reasoning.max_tokens": 0})
    assert caught.value.param == "reasoning.max_tokens"


@pytest.mark.parametrize(("kind", "is_on"), [("enabled", 1), ("adaptive", 1), ("disabled", 0)])
def test_thinking_is_on_or_off(kind: str, is_on: int) -> None:
    assert ChatThinkingBody(type=kind).is_on == is_on


def test_other_types_of_thinking_are_not_supported() -> None:
    with pytest.raises(Unsupported) as caught:
        _ = ChatThinkingBody(type="auto").is_on
    assert caught.value.param == "thinking.type"
