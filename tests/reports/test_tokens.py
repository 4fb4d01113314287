"""From the tokens of an output to its parts. Each of these was a fault of another server."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer

from node.dialects.base import Collected
from node.dialects.chat.body import read_chat
from node.engine.decoding.output import OutputReader
from node.engine.model.detokenizer import Vocabulary
from node.ipc.generate import GenerateRequest
from node.ipc.messages import Loaded, PartKind
from node.parsing.selection import Formats
from node.prompt.renderer import PromptRenderer
from node.prompt.submission import generate_request
from tests.node.parsing.reading import TOOLS, output_format
from tests.node.prompt.template.samples import OPEN
from tests.node.tokenizers import byte_level, made_folder
from tests.reports.samples import ARGUMENTS, CALLS

INFO = Loaded(0, context_tokens=10_000, max_rows=1, vocab_size=1000)


def read_output(tokenizer: Tokenizer, row: GenerateRequest, tokens: Iterable[int]) -> Collected:
    reader, collected = OutputReader(Vocabulary(tokenizer), row), Collected()
    for token in tokens:
        collected.add(reader.read(token))
    collected.add(reader.end())
    return collected


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """The text without any added token, character by character."""
    return [token for character in text for token in tokenizer.encode(character).ids]


def test_calls_are_read_where_the_vocabulary_has_no_token_that_marks_them(tmp_path: Path) -> None:
    tokenizer = byte_level(specials=False)
    renderer = PromptRenderer(made_folder(tmp_path, tokenizer, OPEN))
    assert renderer.formats == Formats("think", "hermes")
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in TOOLS.items()
    ]
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "tools": tools}
    request = read_chat(json.dumps(body).encode()).request
    row = generate_request(request, "u", renderer.render(request), INFO)
    output = f"<think>\nHm.\n</think>\n\nI look.\n{CALLS['hermes']}"
    answer = read_output(tokenizer, row, tokenizer.encode(output).ids)
    assert answer.text(PartKind.REASONING) == "Hm."
    assert answer.text(PartKind.CONTENT) == "I look."
    assert [(call.name, json.loads(call.text)) for call in answer.calls] == [("find", ARGUMENTS)]


def test_an_answer_may_spell_out_the_tokens_of_the_vocabulary() -> None:
    tokenizer = byte_level()
    output = output_format(reasoning="think", tool_calls="hermes")
    row = GenerateRequest("u", (), 99, output=output)
    thought = "</think> would end it."
    answer = "A turn ends with <|end|>, a thought with `</think>`, and <think> begins one."
    tokens = [
        *tokenizer.encode("<think>").ids,
        *spelled(tokenizer, thought),
        *tokenizer.encode("</think>").ids,
        *spelled(tokenizer, answer),
        *tokenizer.encode("<|end|>").ids,
    ]
    collected = read_output(tokenizer, row, tokens)
    assert collected.text(PartKind.REASONING) == thought
    assert collected.text(PartKind.CONTENT) == answer
