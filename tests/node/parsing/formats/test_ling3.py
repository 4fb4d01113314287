"""Outputs of Ling 3."""

from tests.node.parsing.reading import Parsed, read

END = "<|role_end|>"
CALL = "<tool_call>find\n<arg_key>where</arg_key>\n<arg_value>x</arg_value>\n</tool_call>"


def test_the_marker_at_the_turns_end_is_no_text() -> None:
    def ling(text: str) -> Parsed:
        return read(text, reasoning="ling3", tool_calls="ling3", tail="<think>")

    calls = (("find", {"where": "x"}),)
    assert ling(f"Hm.\n</think>\nSo.{END}") == Parsed("So.", "Hm.")
    assert ling(f"Hm.\n</think>\nI look.\n{CALL}{END}") == Parsed("I look.", "Hm.", calls)
    assert ling(f"{CALL}{END}") == Parsed(calls=calls)
