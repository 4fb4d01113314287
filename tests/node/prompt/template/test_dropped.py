"""Responses that the next turn's prompt does not repeat."""

from node.prompt.template.chat import ChatRenderer
from node.prompt.template.chat_template import ChatTemplate
from node.prompt.template.dropped import find_dropped, find_part_markers
from tests.node.prompt.template.samples import LAST_USER, OPEN, POOR


def dropped(text: str, *, reads_reasoning: bool = True) -> tuple[str, ...]:
    """Tokens as text: each character is a token."""
    chat = ChatRenderer(ChatTemplate(text, {}), "hermes")
    found = find_dropped(
        chat,
        find_part_markers(text, ()),
        lambda piece: tuple(map(ord, piece)),
        reads_reasoning=reads_reasoning,
    )
    return tuple("".join(map(chr, tokens)) for tokens in found)


def test_reasoning_that_stays_is_dropped_only_if_it_is_not_given_back() -> None:
    assert dropped(OPEN) == ("", "", "<think>")


def test_reasoning_may_be_dropped_after_a_user_message() -> None:
    assert dropped(LAST_USER) == ("<think>", "", "<think>")


def test_a_template_without_a_place_for_reasoning_drops_it() -> None:
    assert dropped(POOR + "{# <think> #}") == ("<think>", "<think>", "<think>")


def test_reasoning_that_stays_in_the_content_is_kept_with_it() -> None:
    assert dropped(POOR + "{# <think> #}", reads_reasoning=False) == ("", "", "")
    cut = "{{ '<|begin|>' + m.role + '\n' + m.content.split('</think>')[-1] + '<|end|>\n' }}"
    start = POOR.index("{{ '<|begin|>'")
    end = POOR.index("{% endfor %}")
    cutting = POOR[:start] + cut + POOR[end:]
    assert dropped(cutting, reads_reasoning=False) == ("<think>", "", "")


def test_what_the_prompt_opens_is_no_answers_begin() -> None:
    opening = OPEN.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    assert dropped(opening) == ("", "", "")


def test_a_template_without_a_next_turn_drops_nothing() -> None:
    only = "{% if messages | length > 1 %}{{ raise_exception('One.') }}{% endif %}" + OPEN
    assert dropped(only) == ("", "", "")


def test_parts_are_found_in_template_and_vocabulary() -> None:
    parts = find_part_markers("</tool_call> </seed:think> [/THINK]", {"<think>"})
    assert [part.opening for part in parts] == ["<seed:think>", "[THINK]", "<think>", "<tool_call>"]
    assert [part.closing for part in parts][:2] == ["</seed:think>", "[/THINK]"]
