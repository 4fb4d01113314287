"""The continuations of each format of reasoning: where it begins, and behind its end."""

from collections.abc import Sequence
from dataclasses import dataclass

ANSWER = "So it is."
HERMES = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
CHATML = "<|im_start|>assistant\n"
K3 = '<|open|>message role="assistant"<|sep|>'
WITHOUT = ("none", "functionary_v32")
"""Formats without reasoning."""


@dataclass(frozen=True)
class Wire:
    """The continuations of a format where its reasoning begins, and behind it."""

    opened: tuple[str, ...]
    """Ends of prompts that have begun the reasoning."""
    unopened: tuple[tuple[str, str], ...] = ()
    """(end of a prompt, what the output begins with)."""
    answer: str = ANSWER
    call: str = HERMES
    tool_calls: str = ""
    """Empty: of the same name."""
    content: str = ANSWER


def marked(opener: str, *more: str) -> Wire:
    """Returns the wire of a format of reasoning that has its markers apart."""
    return Wire(
        (CHATML + opener, f"{CHATML}{opener}\n"),
        tuple((CHATML, f"{each}\n") for each in (opener, *more)),
        tool_calls="hermes",
    )


WIRES = {
    "think": marked("<think>"),
    "mixed_think": marked("<think>", "<thinking>"),
    "always_think": Wire(("", CHATML, f"{CHATML}<think>\n"), ((CHATML, ""),), tool_calls="hermes"),
    "olmo3": Wire((CHATML, f"{CHATML}<think>"), ((CHATML, ""),), tool_calls="hermes"),
    "ernie45": Wire((CHATML, f"{CHATML}<think>\n"), ((CHATML, ""),), tool_calls="hermes"),
    "glm": marked("<think>"),
    "hunyuan_a13b": marked("<think>"),
    "ling3": marked("<think>"),
    "hy_v3": marked("<think>", "<think:opensource>"),
    "k2_horizon": marked("<ifm|think>", "<ifm|think_fast>"),
    "longcat": marked("<longcat_think>"),
    "minimax_m3": marked("<mm:think>"),
    "seed": marked("<seed:think>"),
    "apertus": marked("<|inner_prefix|>"),
    "mistral": marked("[THINK]"),
    "granite": marked("<think>", "Here is my thought process:"),
    "apriel": marked("Here are my reasoning steps:"),
    "gemma4": Wire(
        ("<|turn>model\n<|channel>thought\n",),
        (("<|turn>model\n", "<|channel>thought\n"),),
        tool_calls="hermes",
    ),
    "harmony": Wire(
        ("<|start|>assistant<|channel|>analysis<|message|>",),
        (("<|start|>assistant", "<|channel|>analysis<|message|>"),),
        f"<|start|>assistant<|channel|>final<|message|>{ANSWER}<|return|>",
        "<|start|>assistant<|channel|>commentary to=functions.ping <|constrain|>json<|message|>"
        "{}<|call|>",
    ),
    "command_r": Wire(
        ("<|CHATBOT_TOKEN|><|START_THINKING|>",),
        (("<|CHATBOT_TOKEN|>", "<|START_THINKING|>"),),
        f"<|START_RESPONSE|>{ANSWER}<|END_RESPONSE|>",
        '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "ping", "parameters": {}}]'
        "<|END_ACTION|>",
    ),
    "inkling": Wire(
        ("<|message_model|><|content_thinking|>",),
        (("<|message_model|>", "<|content_thinking|>"),),
        f"<|message_model|><|content_text|>{ANSWER}<|end_message|>",
        '<|message_model|>ping<|content_invoke_tool_json|>{"name": "ping", "args": {}}'
        "<|end_message|>",
    ),
    "kimi_k3": Wire(
        (f"{K3}<|open|>think<|sep|>",),
        ((K3, "<|open|>think<|sep|>"),),
        f"<|open|>response<|sep|>{ANSWER}<|close|>response<|sep|>",
        "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="ping" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>',
    ),
    "muse": Wire(
        ("<|start|>assistant to=self<|message|>",),
        (("<|start|>assistant", " to=self<|message|>"),),
        f"<|start|>assistant to=user<|message|>{ANSWER}<|eot|>",
        "<|start|>assistant to=ping<|message|><atem:function_calls>\n"
        '<atem:invoke name="ping">\n</atem:invoke>\n</atem:function_calls><|eot|>',
    ),
    "solar": Wire(
        ("<|begin|>assistant<|think|>",),
        (("<|begin|>assistant", "<|think|>"),),
        f"<|begin|>assistant<|content|>{ANSWER}<|end|>",
        "<|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>ping"
        "<|tool_call:args|>{}<|tool_call:end|><|calls|>",
    ),
    "ui_tars": Wire(
        (),
        ((CHATML, "Thought: "), ("", "Thought: ")),
        call=" ping()",
        # What ends a thought begins an action, which is text where it is no call.
        content=f"Action:{ANSWER}",
    ),
}


def prompts(wire: Wire) -> Sequence[tuple[str, str]]:
    """(end of the prompt, what the output begins with)."""
    return (*((each, "") for each in wire.opened), *wire.unopened)
