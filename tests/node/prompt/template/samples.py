"""Small chat templates of several kinds, and requests for them."""

from typing import Any

from node.ipc.generate import SamplingParams
from node.prompt.template.abilities import Abilities
from node.request import Message, TextRequest, Tool

# Takes any messages, in the order in which they are given.
OPEN = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>\n{% endif %}"
    "{% for m in messages %}<|begin|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
# Takes lists of parts, too.
LISTED = OPEN.replace(
    "{{ m.content }}",
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}",
)
# Drops the reasoning of answers before the last user's message.
LAST_USER = OPEN.replace(
    "{% for m in messages %}",
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}",
    1,
).replace("if m.reasoning_content", "if m.reasoning_content and loop.index0 > ns.last")
# Wants user and assistant in turns, one system message at the begin, and short ids.
STRICT = (
    "{% set ns = namespace(at=0) %}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('Late system.') }}{% endif %}"
    "{% if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('Not in turns.') }}"
    "{% endif %}{% set ns.at = ns.at + 1 %}{% endif %}"
    "{% if m.role == 'assistant' and not m.content and not m.tool_calls %}"
    "{{ raise_exception('Nothing said.') }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}"
    "{{ raise_exception('Long id.') }}{% endif %}{% endfor %}"
    "{% if m.role not in ('system', 'user', 'assistant', 'tool') %}"
    "{{ raise_exception('Who?') }}{% endif %}"
    "{% endfor %}" + OPEN
)
# Knows no system, no tools, and takes text only.
POOR = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}"
    "{{ raise_exception('Who?') }}{% endif %}"
    "{{ '<|begin|>' + m.role + '\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)

ALL = Abilities(
    parts=frozenset({"user", "system", "tool"}),
    system=True,
    several_systems=True,
    late_system=True,
    developer=True,
    user_twice=True,
    assistant_twice=True,
    assistant_first=True,
    empty_assistant=True,
    tools=True,
    calls=True,
    calls_alone=True,
    results=True,
    parallel_calls=True,
    text_with_calls=True,
    text_before_calls=True,
    long_ids=True,
    user_after_result=True,
    text_beside_reasoning=True,
    reasoning_fields=("reasoning_content",),
)
WEATHER = Tool({"name": "weather", "description": "Tells the weather."})


def asking(*messages: Message, **fields: Any) -> TextRequest:
    known = {"sampling": SamplingParams(), "stops": (), "max_tokens": None, "stream": False}
    return TextRequest("m", messages=messages, **{**known, **fields})
