"""Converts messages to a form that one chat template supports.

What a template supports is passed unchanged. The rest is converted by rules that keep a longer
conversation's text beginning with the shorter one's: nothing moves to the front, and the form of a
message does not depend on the messages behind it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from node.errors import BadRequest
from node.prompt.template.abilities import Abilities
from node.prompt.template.chat_template import Turn
from node.prompt.template.tool_text import (
    arguments_text,
    describe,
    read_arguments,
    spell_calls,
    spell_result,
)
from node.protocol.chain.volatile import without_volatile_lines
from node.request import Content, Message, TextPart, Tool, ToolCall, has_text

BRIDGE = "OK."
"""The assistant message that is put between a tool result and a user message, if a template needs
one there."""
GAP = "\n\n"
"""Separates the texts of messages that are merged."""
PART_GAP = "\n"
"""Separates the parts of a message that are merged."""

_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")


@dataclass(slots=True)
class _MessageDraft:
    """A message while it is converted."""

    role: str
    content: Content
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""


def build_turns(
    messages: Sequence[Message], tools: Sequence[Tool], abilities: Abilities, tool_format: str
) -> list[Turn]:
    """Converts messages for a template with these abilities. `tool_format` is the name in
    `node.parsing` of the model's form of calls. Raises `BadRequest` for what the template cannot
    render."""
    drafts = _drafts(messages, abilities)
    if abilities.calls if tools else abilities.calls_alone:
        drafts = _native_calls(drafts, abilities)
    else:
        # Results stay where the template shows them, if it describes tools.
        drafts = _spelled_calls(
            drafts, tool_format, keeps_results=abilities.tools and abilities.results
        )
    drafts = _with_systems(drafts, tools, abilities)
    return [_turn(draft, abilities) for draft in _in_order(drafts, abilities)]


# --- messages --------------------------------------------------------------------------------


def _drafts(messages: Sequence[Message], abilities: Abilities) -> list[_MessageDraft]:
    drafts, names = [], {}
    for message in messages:
        role: str = message.role
        content = message.content
        if role in ("system", "developer"):
            content = _without_volatile(content)
            if has_text(message.content) and not content:
                continue
            role = role if abilities.developer else "system"
        names.update({call.call_id: call.name for call in message.tool_calls})
        draft = _MessageDraft(role, content, message.reasoning, message.tool_calls)
        draft.content = _plain(draft, abilities)
        draft.call_id, draft.name = message.tool_call_id, message.name
        if role == "tool" and not draft.name:
            draft.name = names.get(draft.call_id, "")
        drafts.append(draft)
    return drafts


def _plain(draft: _MessageDraft, abilities: Abilities) -> Content:
    """Returns text-only content as one string, unless the template accepts a list of parts."""
    if draft.role == "assistant":
        # Parts of a response are joined as the model generated them.
        return _as_text(draft.content, "")
    return draft.content if _takes_parts(draft, abilities) else _as_text(draft.content)


def _takes_parts(draft: _MessageDraft, abilities: Abilities) -> bool:
    role = "system" if draft.role == "developer" else draft.role
    return role in abilities.parts


def _as_text(content: Content, gap: str = PART_GAP) -> Content:
    """Joins the parts to one string if all of them are text."""
    if isinstance(content, str):
        return content
    texts = [part.text for part in content if isinstance(part, TextPart)]
    return gap.join(filter(None, texts)) if len(texts) == len(content) else content


def _without_volatile(content: Content) -> Content:
    """Removes volatile lines, and the parts that become empty."""
    if isinstance(content, str):
        return without_volatile_lines(content)
    kept = [
        TextPart(without_volatile_lines(part.text)) if isinstance(part, TextPart) else part
        for part in content
    ]
    parts = tuple(part for part in kept if not isinstance(part, TextPart) or part.text)
    return _as_text(parts) if len(parts) < 2 else parts


def _joined(first: Content, second: Content, gap: str = GAP) -> Content:
    """Joins both contents, to one string if all of it is text."""
    first, second = _as_text(first), _as_text(second)
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}{gap}{second}" if first and second else first or second
    parts = [
        (TextPart(content),) if isinstance(content, str) else content
        for content in (first, gap, second)
        if content
    ]
    return tuple(part for each in parts for part in each)


# --- calls and results -----------------------------------------------------------------------


def _native_calls(drafts: list[_MessageDraft], abilities: Abilities) -> list[_MessageDraft]:
    """Converts for a template that renders calls and results itself."""
    made: list[_MessageDraft] = []
    at = 0
    while at < len(drafts):
        draft, at = drafts[at], at + 1
        if draft.role == "tool":
            # A result without its call, which templates refuse.
            draft = _MessageDraft("user", _spelled_result(draft.content))
        if draft.calls and draft.content and draft.reasoning:
            draft = _without_content(draft, abilities)
        *before, draft = _parted(draft, abilities)
        made += [*before, draft]
        if draft.calls:
            end = at
            while end < len(drafts) and drafts[end].role == "tool":
                end += 1
            results, at = drafts[at:end], end
            if len(draft.calls) > 1 and not abilities.parallel_calls:
                made[-1:] = _one_by_one(draft, results)
            else:
                made += results
    return made if abilities.long_ids else [_with_short_ids(draft) for draft in made]


def _without_content(draft: _MessageDraft, abilities: Abilities) -> _MessageDraft:
    if abilities.text_beside_reasoning or not isinstance(draft.content, str):
        return draft
    return replace(draft, content="", reasoning=draft.reasoning + GAP + draft.content)


def _parted(draft: _MessageDraft, abilities: Abilities) -> list[_MessageDraft]:
    """Puts the text in a message before the calls, if the template would otherwise lose the
    calls."""
    if not draft.calls or not draft.content or abilities.text_with_calls:
        return [draft]
    if abilities.text_before_calls:
        return [replace(draft, calls=()), replace(draft, content="", reasoning="")]
    # The text is lost, which matters less than the calls.
    return [replace(draft, content="")]


def _one_by_one(draft: _MessageDraft, results: list[_MessageDraft]) -> list[_MessageDraft]:
    """Returns one message for each call, followed by its results."""
    made: list[_MessageDraft] = []
    left = [replace(result) for result in results]
    for number, call in enumerate(draft.calls):
        first = number == 0
        made.append(
            _MessageDraft(
                draft.role,
                draft.content if first else "",
                draft.reasoning if first else "",
                (call,),
                name=draft.name,
            )
        )
        made += [result for result in left if result.call_id == call.call_id]
        left = [result for result in left if result.call_id != call.call_id]
    return made + left


def _with_short_ids(draft: _MessageDraft) -> _MessageDraft:
    calls = tuple(replace(call, call_id=_short_id(call.call_id)) for call in draft.calls)
    call_id = _short_id(draft.call_id) if draft.role == "tool" else draft.call_id
    return replace(draft, calls=calls, call_id=call_id)


def _short_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return blake2b(call_id.encode(), digest_size=8).hexdigest()[:9]


def _spelled_calls(
    drafts: list[_MessageDraft], tool_format: str, *, keeps_results: bool
) -> list[_MessageDraft]:
    """Converts for a template that does not render calls: calls and results become text."""
    made: list[_MessageDraft] = []
    follows_result = False
    for draft in drafts:
        is_result = draft.role == "tool"
        if draft.calls:
            spelled = spell_calls(draft.calls, tool_format)
            draft = replace(draft, content=_joined(draft.content, spelled, "\n"), calls=())
        elif is_result and not keeps_results:
            content = _spelled_result(draft.content)
            if follows_result:
                content = _joined(made.pop().content, content, "\n")
            draft = _MessageDraft("user", content)
        follows_result = is_result
        made.append(draft)
    return made


def _spelled_result(content: Content) -> Content:
    content = _as_text(content)
    if isinstance(content, str):
        return spell_result(content)
    begin, _, end = spell_result("\0").partition("\0")
    return (TextPart(begin), *content, TextPart(end))


# --- systems ---------------------------------------------------------------------------------


def _with_systems(
    drafts: list[_MessageDraft], tools: Sequence[Tool], abilities: Abilities
) -> list[_MessageDraft]:
    """Places system messages where the template accepts them: one or several at the beginning;
    later ones stay system messages or become user messages."""
    count = next((i for i, draft in enumerate(drafts) if not _is_system(draft)), len(drafts))
    begin, rest = _first_systems(drafts[:count], tools, abilities), drafts[count:]
    if not abilities.late_system:
        rest = [_as_user(draft) if _is_system(draft) else draft for draft in rest]
    if abilities.system or not begin:
        return begin + rest
    if rest and rest[0].role == "user":
        rest[0].content = _joined(begin[0].content, rest[0].content)
        return rest
    return [_MessageDraft("user", begin[0].content), *rest]


def _first_systems(
    begin: list[_MessageDraft], tools: Sequence[Tool], abilities: Abilities
) -> list[_MessageDraft]:
    """Returns the first system messages, with the tools if the template does not describe them."""
    if tools and not abilities.tools:
        text = describe(tools, abilities.example_call)
        if not begin:
            return [_MessageDraft("system", text)]
        begin = [*begin[:-1], replace(begin[-1], content=_joined(begin[-1].content, text))]
    if tools and abilities.tools_with_system and not begin:
        return [_MessageDraft("system", "")]
    if len(begin) < 2 or abilities.several_systems:
        return begin
    whole = begin[0]
    for draft in begin[1:]:
        whole.content = _joined(whole.content, draft.content)
    return [whole]


def _as_user(draft: _MessageDraft) -> _MessageDraft:
    return _MessageDraft(
        "user", _joined(_joined("<system>", draft.content, "\n"), "</system>", "\n")
    )


def _is_system(draft: _MessageDraft) -> bool:
    return draft.role in ("system", "developer")


# --- order -----------------------------------------------------------------------------------


def _in_order(drafts: list[_MessageDraft], abilities: Abilities) -> list[_MessageDraft]:
    """Orders and merges messages so that the template accepts the order of roles."""
    made: list[_MessageDraft] = []
    for draft in drafts:
        last = made[-1] if made else None
        speaks_first = last is None or _is_system(last)
        if draft.role == "assistant":
            thought = draft.reasoning if abilities.reasoning_part else ""
            is_empty = not (draft.content or draft.calls or thought)
            if is_empty and not abilities.empty_assistant:
                continue
            if speaks_first and not abilities.assistant_first:
                made.append(_MessageDraft("user", ""))
        if last is None or not _are_one(last, draft, abilities):
            if draft.role == "user" and last is not None and _awaits_answer(last, abilities):
                made.append(_MessageDraft("assistant", BRIDGE))
            made.append(draft)
        else:
            last.content = _joined(last.content, draft.content)
            if draft.calls and not abilities.text_with_calls:
                last.content = ""
            gap = GAP if last.reasoning and draft.reasoning else ""
            last.reasoning += gap + draft.reasoning
            last.calls = draft.calls
    return made


def _are_one(last: _MessageDraft, draft: _MessageDraft, abilities: Abilities) -> bool:
    if last.role != draft.role or last.calls:
        return False
    if draft.calls and abilities.text_before_calls and not abilities.text_with_calls:
        return False
    twice = {"user": abilities.user_twice, "assistant": abilities.assistant_twice}
    return not twice.get(draft.role, True)


def _awaits_answer(last: _MessageDraft, abilities: Abilities) -> bool:
    """True if an assistant message must precede a user message."""
    return bool(last.role == "tool" or last.calls) and not abilities.user_after_result


# --- turns -----------------------------------------------------------------------------------


def _turn(draft: _MessageDraft, abilities: Abilities) -> Turn:
    turn: Turn = {"role": draft.role, "content": _content(draft, abilities)}
    if draft.reasoning and not abilities.reasoning_part:
        turn |= dict.fromkeys(abilities.reasoning_fields, draft.reasoning)
    if draft.calls:
        turn["tool_calls"] = [_call(call, abilities) for call in draft.calls]
    if draft.call_id:
        turn["tool_call_id"] = draft.call_id
    if draft.name:
        turn["name"] = draft.name
    return turn


def _content(draft: _MessageDraft, abilities: Abilities) -> Any:
    content = draft.content
    if draft.reasoning and abilities.reasoning_part and isinstance(content, str):
        thought = {"type": "thinking", "thinking": draft.reasoning}
        return [thought, *([{"type": "text", "text": content}] if content else [])]
    if isinstance(content, str):
        if draft.role in abilities.only_parts:
            return [{"type": "text", "text": content}]
        return content
    if not _takes_parts(draft, abilities):
        raise BadRequest("The model's chat template supports text only.", param="messages")
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": part.kind}
        for part in content
    ]


def _call(call: ToolCall, abilities: Abilities) -> dict[str, Any]:
    spell = arguments_text if abilities.string_arguments else read_arguments
    function = {"name": call.name, "arguments": spell(call.arguments)}
    spelled = {"type": "function", "function": function}
    return {"id": call.call_id, **spelled} if call.call_id else spelled
