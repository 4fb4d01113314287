"""Features that are detected in a template."""

import pytest

from node.prompt.template.abilities import Abilities, find_abilities
from node.prompt.template.chat_template import ChatTemplate
from tests.node.prompt.template.samples import LAST_USER, OPEN, POOR, STRICT


def abilities_of(text: str) -> Abilities:
    return find_abilities(ChatTemplate(text, {"bos_token": "<s>"}))


def test_a_template_that_accepts_all_has_all_abilities() -> None:
    found = abilities_of(OPEN)
    assert found.system
    assert found.several_systems
    assert found.late_system
    assert found.user_twice
    assert found.assistant_twice
    assert found.assistant_first
    assert found.empty_assistant
    assert found.tools
    assert found.calls
    assert found.calls_alone
    assert found.results
    assert found.parallel_calls
    assert found.text_with_calls
    assert found.text_before_calls
    assert found.long_ids
    assert found.user_after_result
    assert found.text_beside_reasoning
    assert found.reasoning_fields == ("reasoning_content",)
    assert not found.string_arguments
    assert not found.empty_tools
    assert not found.only_parts
    assert found.example_call == ""


def test_a_role_that_is_only_spelled_is_not_known() -> None:
    assert not abilities_of(OPEN).developer
    assert abilities_of(OPEN + "{# developer #}").developer
    refusing = "{% if messages[0].role == 'developer' %}{{ raise_exception('No.') }}{% endif %}"
    assert not abilities_of(refusing + OPEN).developer


def test_what_is_refused_is_no_ability() -> None:
    found = abilities_of(STRICT)
    assert found.system
    assert found.calls
    assert found.parallel_calls
    assert not found.late_system
    assert not found.user_twice
    assert not found.assistant_twice
    assert not found.assistant_first
    assert not found.empty_assistant
    assert not found.long_ids
    assert not found.user_after_result


def test_what_is_left_out_is_no_ability() -> None:
    found = abilities_of(POOR)
    assert found == Abilities(
        user_twice=True,
        assistant_twice=True,
        assistant_first=True,
        empty_assistant=True,
        text_beside_reasoning=True,
    )


def test_a_system_that_wanders_to_the_front_is_not_late() -> None:
    front = "{% for m in messages if m.role == 'system' %}{{ m.content }}\n{% endfor %}"
    assert not abilities_of(front + OPEN.replace("{{ m.content }}", "{{ m.content }}!")).late_system


@pytest.mark.parametrize(
    "shown", ["messages[-1].role == 'user'", "messages | length == 2", "not loop.nextitem"]
)
def test_a_system_that_does_not_stay_where_it_is_is_none(shown: str) -> None:
    front = "{% if m.role != 'system' and " + shown + " %}{{ messages[0].content }}{% endif %}"
    text = OPEN.replace("{{ m.content }}", "{% if m.role != 'system' %}{{ m.content }}{% endif %}")
    found = abilities_of(text.replace("<|begin|>", front + "<|begin|>", 1))
    assert found.calls
    assert not found.system


@pytest.mark.parametrize(
    ("spelled", "parts"),
    [
        ("{{ m.content }}", False),
        ("{{ m.content | tojson }}", False),
        (
            "{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
            True,
        ),
    ],
)
def test_a_list_that_is_spelled_out_is_not_accepted(spelled: str, parts: bool) -> None:
    found = abilities_of(OPEN.replace("{{ m.content }}", spelled)).parts
    assert found == ({"user", "system", "tool"} if parts else set())


@pytest.mark.parametrize("role", ["user", "system", "tool"])
def test_lists_may_be_accepted_of_some_roles_only(role: str) -> None:
    spelled = (
        "{% if m.content is not string and m.role == '" + role + "' %}"
        "{% for p in m.content %}{{ p.text }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
    )
    assert abilities_of(OPEN.replace("{{ m.content }}", spelled)).parts == {role}


def test_text_may_hide_calls() -> None:
    hiding = OPEN.replace("m.tool_calls or []", "(m.tool_calls or []) if not m.content")
    found = abilities_of(hiding)
    assert found.calls
    assert not found.text_with_calls
    assert found.text_before_calls
    refusing = "{% if loop.previtem and loop.previtem.role == 'assistant' == m.role %}"
    found = abilities_of(
        hiding.replace(
            "<|begin|>", refusing + "{{ raise_exception('No.') }}{% endif %}<|begin|>", 1
        )
    )
    assert found.calls
    assert not found.text_before_calls
    # One that leaves the text out spells the calls.
    silent = "{% if not m.tool_calls %}{{ m.content }}{% endif %}"
    assert abilities_of(OPEN.replace("{{ m.content }}", silent)).text_with_calls


def test_calls_may_be_spelled_without_tools_only() -> None:
    alone = OPEN.replace("m.tool_calls or []", "(m.tool_calls or []) if not tools")
    found = abilities_of(
        alone.replace("c.function.arguments | tojson", "'' ~ c.function.arguments")
    )
    assert not found.calls
    assert found.calls_alone
    assert found.string_arguments


def test_a_role_may_want_parts_only() -> None:
    listed = (
        "{% if m.role == 'system' %}{{ m.content[0].text }}{% else %}{{ m.content }}{% endif %}"
    )
    found = abilities_of(OPEN.replace("{{ m.content }}", listed))
    assert found.only_parts == {"system"}
    assert found.system


@pytest.mark.parametrize(
    ("spelled", "as_text"),
    [
        ("c.function.arguments", True),
        ("c.function.arguments | tojson", False),
        ("'' ~ c.function.arguments", True),
    ],
)
def test_arguments_go_in_as_they_come_out_as_json(spelled: str, as_text: bool) -> None:
    found = abilities_of(OPEN.replace("c.function.arguments | tojson", spelled))
    assert found.calls
    assert found.string_arguments is as_text


def test_only_the_first_call_may_be_spelled() -> None:
    found = abilities_of(OPEN.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]"))
    assert found.calls
    assert not found.parallel_calls


def test_a_template_may_want_a_list_without_tools() -> None:
    found = abilities_of(OPEN.replace("{% if tools %}", "{% if tools | length %}"))
    assert found.empty_tools
    assert found.system


def test_tools_may_be_shown_with_a_system_message_only() -> None:
    found = abilities_of(OPEN.replace("if tools", "if tools and messages[0].role == 'system'"))
    assert found.tools
    assert found.tools_with_system


def test_a_template_that_spells_calls_shows_how() -> None:
    found = abilities_of(OPEN.replace("{% if tools %}", "{% if false %}"))
    assert not found.tools
    assert found.calls
    assert found.example_call == (
        '<tool_call>\n{"name": "wordtool", "arguments": {"wordkey": "wordvalue"}}\n</tool_call>'
    )


def test_text_beside_reasoning_may_be_refused() -> None:
    refusing = (
        "{% if m.tool_calls and m.content and m.reasoning_content %}"
        "{{ raise_exception('One of them.') }}{% endif %}<|begin|>{{ m.role }}"
    )
    found = abilities_of(OPEN.replace("<|begin|>{{ m.role }}", refusing))
    assert not found.text_beside_reasoning


def test_reasoning_may_be_a_part() -> None:
    spelled = (
        "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{% if p.type == 'thinking' %}[{{ p.thinking }}]{% else %}{{ p.text }}{% endif %}"
        "{% endfor %}{% endif %}"
    )
    assert abilities_of(OPEN.replace("{{ m.content }}", spelled)).reasoning_part
    assert not abilities_of(OPEN).reasoning_part


def test_efforts_are_those_that_are_accepted() -> None:
    choosy = (
        "{% set reasoning_effort = reasoning_effort or 'no_think' %}"
        "{% if reasoning_effort not in ('no_think', 'low', 'high') %}{{ raise_exception('No.') }}"
        "{% endif %}{{ 'thinks' if reasoning_effort != 'no_think' }}"
    )
    found = abilities_of(choosy + OPEN)
    assert found.efforts == {"reasoning_effort": ("low", "high")}
    assert found.off_efforts == {"reasoning_effort": "no_think"}
    assert found.on_efforts == {"reasoning_effort": "high"}
    echoing = abilities_of("Reasoning: {{ reasoning_effort or 'medium' }}" + OPEN)
    assert echoing.off_efforts == {"reasoning_effort": "low"}
    assert echoing.on_efforts == {}


def test_a_switch_of_its_own_turns_thinking_off() -> None:
    switched = "{{ 'thinks' if enable_thinking }}{{ reasoning_effort }}{# 'low' #}"
    assert abilities_of(switched + OPEN).off_efforts == {}


def test_a_template_that_is_no_program_has_no_abilities() -> None:
    assert abilities_of("{% if %}") == Abilities(empty_tools=True, text_beside_reasoning=True)
    assert abilities_of(LAST_USER).reasoning_fields == ("reasoning_content",)
