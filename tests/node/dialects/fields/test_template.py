"""Options for the chat template, besides messages and tools."""

import importlib
import inspect

import pytest

from node.dialects.fields.template import template_options
from node.errors import BadRequest
from node.prompt.template.chat_template import import_transformers
from node.protocol.template_kwargs import RESERVED_KWARGS
from node.request import TemplateOptions


def test_nothing_given_is_nothing_passed_on() -> None:
    assert template_options(thinking=None, effort=None, kwargs=None) == TemplateOptions()


def test_an_effort_of_none_turns_thinking_off_and_is_no_effort() -> None:
    options = template_options(thinking=None, effort="none", kwargs={"a": None, "b": 1})
    assert options == TemplateOptions(enable_thinking=False, kwargs={"b": 1})
    assert template_options(thinking=True, effort="high", kwargs=None).reasoning_effort == "high"


def test_thinking_without_effort_is_a_contradiction() -> None:
    with pytest.raises(BadRequest) as caught:
        template_options(thinking=True, effort="none", kwargs=None)
    assert caught.value.param == "enable_thinking"


@pytest.mark.parametrize("name", sorted(RESERVED_KWARGS))
def test_reserved_template_variables_are_not_for_the_client(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        template_options(thinking=None, effort=None, kwargs={"a": 1, name: None})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_the_renderer_has_no_argument_that_a_client_could_set() -> None:
    import_transformers()
    library = importlib.import_module("transformers.utils.chat_template_utils")
    taken = dict(inspect.signature(library.render_jinja_template).parameters)
    # Documents are a variable of templates.
    assert set(taken) - {"documents", "kwargs"} <= RESERVED_KWARGS
