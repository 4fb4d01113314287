"""Outputs of Solar Open."""

from tests.node.parsing.reading import Parsed, collect, output_format, read

BEGIN = "<|begin|>assistant"


def solar(text: str, tail: str = BEGIN) -> Parsed:
    return read(text, reasoning="solar", tool_calls="solar", tail=tail)


def call(call_id: str, name: str, arguments: str) -> str:
    head = f"<|tool_call:begin|>{call_id}<|tool_call:name|>{name}"
    return f"{head}<|tool_call:args|>{arguments}<|tool_call:end|>"


def test_reasoning_answer_and_calls_are_distinguished() -> None:
    calls = call("k3v9", "find", '{"where": "x"}') + call("k4v9", "ping", "{}")
    thought = "<|think|>Hm.<|end|>"
    assert solar(f"{thought}{BEGIN}<|content|>So.<|end|>") == Parsed("So.", "Hm.")
    assert solar(f"{thought}{BEGIN}<|tool_calls|>{calls}<|calls|>") == Parsed(
        "", "Hm.", (("find", {"where": "x"}), ("ping", {}))
    )
    assert solar(call("k3v9", "ping", "{}")) == Parsed(calls=(("ping", {}),))


def test_a_prompt_that_has_reasoned_leads_to_the_answer() -> None:
    tail = f"{BEGIN}<|think|><|end|>{BEGIN}"
    assert solar("<|content|>So.<|end|>", tail) == solar("So.", tail) == Parsed("So.")
    assert solar("Hm.<|end|>", BEGIN + "<|think|>") == Parsed("", "Hm.")


def test_the_id_is_the_one_that_the_model_wrote() -> None:
    form = output_format(reasoning="solar", tool_calls="solar", tail=BEGIN)
    text = "<|tool_calls|>" + call("k3v9", "ping", "{}") + "<|calls|>"
    assert collect(form, [text]).calls[0].call_id == "k3v9"


def test_what_is_no_call_stays_text() -> None:
    for text in (call("a", "unknown", "{}"), call("a", "find", '{"wh')[:-20]):
        assert solar(text).content.startswith("<|tool_call:begin|>a<|tool_call:name|>")
