"""Rendering of a template."""

from datetime import datetime

import pytest

from node.errors import BadRequest
from node.prompt.template.chat_template import ChatTemplate, with_loop_breaks

USER = {"role": "user", "content": "hello"}


def test_special_tokens_and_variables_are_there() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ thinking }}{{ messages[0].content }}", {"bos_token": "<s>"}
    )
    assert template.render([USER], None, {"thinking": 1}, generation=True) == "<s>1hello"


def test_whatever_a_template_raises_is_a_bad_request_about_messages() -> None:
    for text in (
        "{{ raise_exception('No, please.') }}",
        "{{ messages[0].content + 1 }}",
        "{% if %}",
    ):
        with pytest.raises(BadRequest, match="does not support these messages") as caught:
            ChatTemplate(text, {}).render([USER], None, {}, generation=False)
        assert caught.value.param == "messages"


def test_old_variables_are_there_for_templates_that_read_them() -> None:
    template = ChatTemplate("{{ functions }} on {{ datetime }}", {})
    tools = [{"type": "function", "function": {"name": "f"}}]
    text = template.render([USER], tools, {}, generation=True)
    today = datetime.now().astimezone().strftime("%B %d, %Y")
    assert text == f'[\n  {{\n    "name": "f"\n  }}\n] on {today}'
    assert template.render([USER], None, {}, generation=True).startswith("[]")


def test_words_are_found_as_words() -> None:
    template = ChatTemplate("{{ messages[0].reasoning_content }}", {})
    assert template.mentions("reasoning_content")
    assert not template.mentions("reasoning")


def test_a_loop_that_looks_back_for_a_message_ends_where_nothing_is_left_to_do() -> None:
    text = (
        "{%- for message in messages -%}{%- set before = namespace(role='none', found=false) -%}"
        "{%- if loop.index0 > 0 -%}{%- for j in range(loop.index0 - 1, -1, -1) -%}"
        "{%- if not before.found -%}{%- if messages[j]['role'] != 'tool' -%}"
        "{%- set before.role = messages[j]['role'] -%}{%- set before.found = true -%}"
        "{%- endif -%}{%- endif -%}{%- if before.found -%}!{%- endif -%}{%- endfor -%}{%- endif -%}"
        "<{{ before.role }}>{%- endfor -%}"
    )
    roles = ["user", "assistant", "tool", "tool", "user"]
    turns = [{"role": role, "content": "x"} for role in roles]
    shown = ChatTemplate(text, {}).render(turns, None, {}, generation=False)
    assert shown == "<none>!<user>!!<assistant>!!<assistant>!!<assistant>"
    quick = text.replace("{%- if before.found -%}!{%- endif -%}", "")
    shown = ChatTemplate(quick, {}).render(turns, None, {}, generation=False)
    assert shown == "<none><user><assistant><assistant><assistant>"
    assert "{%- break -%}" in with_loop_breaks(quick)
    assert with_loop_breaks(text) == text
