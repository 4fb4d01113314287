"""Tokens in, parts out: what added tokens of a vocabulary mean."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from node.engine.decoding.output import OutputReader
from node.engine.model.detokenizer import Vocabulary
from node.ipc.generate import GenerateRequest, OutputFormat, ToolSchema
from node.ipc.messages import Part, PartKind

THINK = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
TOOLS = (ToolSchema("f", {"type": "object", "properties": {"a": {"type": "string"}}}),)
FORMAT = OutputFormat("think", "hermes", tools=TOOLS)


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: at for at, text in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in THINK])
    return tokenizer


def byte_tokens() -> Tokenizer:
    """Spells what is no letter in tokens of one byte, and is decoded in windows."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)] + [chr(at) for at in range(0x20, 0x7F)]
    vocabulary = {text: at for at, text in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


TOKENIZER = byte_level()


def spelled(text: str) -> list[int]:
    """The text without any added token, byte by byte."""
    ids: list[int] = []
    for character in text:
        ids += TOKENIZER.encode(character).ids
    return ids


def token(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def reader(output: OutputFormat | None = FORMAT, *stops: str) -> OutputReader:
    return OutputReader(
        Vocabulary(TOKENIZER), GenerateRequest("u", (), 99, stops=stops, output=output)
    )


def parts_of(read: OutputReader, *runs: list[int]) -> list[Part]:
    """The parts, those of a kind that follow each other joined."""
    parts: list[Part] = []
    for run in runs:
        for number in run:
            parts += read.read(number)
    joined: list[Part] = []
    for part in [*parts, *read.end()]:
        if joined and joined[-1].kind is part.kind and part.text:
            part = Part(part.kind, joined.pop().text + part.text, part.index)
        joined.append(part)
    return joined


def test_markers_are_tokens_where_the_vocabulary_has_them() -> None:
    found = parts_of(
        reader(), token("<think>"), spelled("a </think> b"), token("</think>"), spelled("c <think>")
    )
    assert found == [
        Part(PartKind.REASONING, "a </think> b"),
        Part(PartKind.CONTENT, "c <think>"),
    ]


def test_tokens_are_reasoning_from_behind_its_begin_to_its_end() -> None:
    read = reader()
    parts_of(read, token("<think>"), spelled("abc"), token("</think>"), spelled("defg"))
    assert read.reasoning_tokens == 4


def test_a_prompt_that_has_begun_the_reasoning_is_within_it() -> None:
    read = reader(OutputFormat("think", "hermes", "<|im_start|>assistant\n<think>\n", TOOLS))
    assert read.parser.in_reasoning
    parts_of(read, spelled("abc"), token("</think>"), spelled("defg"))
    assert read.reasoning_tokens == 4


def test_a_marker_behind_an_incomplete_character_is_one() -> None:
    euro = spelled("€")
    found = parts_of(
        reader(), token("<think>"), spelled("a"), euro[:2], token("</think>"), spelled("b")
    )
    assert found == [Part(PartKind.REASONING, "a\ufffd"), Part(PartKind.CONTENT, "b")]


def test_an_incomplete_character_precedes_a_special_token() -> None:
    torn = spelled("€")[:2]
    found = parts_of(reader(None), spelled("a"), torn, token("<|im_end|>"), spelled("b"))
    assert found == [Part(PartKind.CONTENT, "a\ufffdb")]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", ["bytes", "window"])
def test_a_call_behind_an_incomplete_character_is_read(kind: str, *, special: bool) -> None:
    tokenizer = byte_level() if kind == "bytes" else byte_tokens()
    texts = [AddedToken(text, special=special, normalized=False) for text in THINK]
    (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(texts)
    body = '{"name": "f", "arguments": {}}'

    def ids(text: str) -> list[int]:
        return [each for one in text for each in tokenizer.encode(one).ids]

    torn = ids("€")[:2]
    markers = [each for text in THINK for each in tokenizer.encode(text).ids]
    read = OutputReader(Vocabulary(tokenizer), GenerateRequest("u", (), 99, output=FORMAT))
    found = parts_of(
        read,
        [markers[0], *ids("a"), *torn, markers[1]],
        [*ids("b"), *torn, markers[2], *ids(body), markers[3]],
    )
    # Of two bytes some decoders make two characters.
    assert [(part.kind, part.text.replace("\ufffd" * 2, "\ufffd")) for part in found] == [
        (PartKind.REASONING, "a\ufffd"),
        (PartKind.CONTENT, "b\ufffd"),
        (PartKind.TOOL_START, ""),
        (PartKind.TOOL_ARGS, "{}"),
    ]


def test_a_call_within_the_reasoning_ends_where_its_block_is_ended() -> None:
    read = reader()
    output_so_far = token("<think>") + token("<tool_call>") + spelled('{"name": "f", "arg": "')
    parts = [part for number in output_so_far for part in read.read(number)]
    read.parser.end_block()
    assert read.parser.in_reasoning
    parts += read.read(token("</think>")[0])
    assert not read.parser.in_reasoning
    assert "".join(part.text for part in parts) == '<tool_call>{"name": "f", "arg": "'


def test_text_of_a_truncated_call_is_read_no_more_as_one() -> None:
    read = reader(FORMAT)
    parts = [
        part for number in token("<tool_call>") + spelled('{"a": "') for part in read.read(number)
    ]
    assert read.parser.block_text == '<tool_call>{"a": "'
    read.parser.end_block()
    call = spelled('<tool_call>{"name": "f", "arguments": {}}</tool_call>')
    parts += parts_of(read, token("<tool_call>"), call[len("<tool_call>") :])
    assert [part.text for part in parts] == ['<tool_call>{"a": "', "", "{}"]
    assert read.parser.block_text == ""


def test_where_no_call_is_read_none_can_be_cut() -> None:
    for read in (reader(), reader(None)):
        read.parser.end_block()
        assert read.parser.block_text == ""
        assert parts_of(read, spelled("ab")) == [Part(PartKind.CONTENT, "ab")]


def test_a_call_is_read_from_tokens_and_from_text_alike() -> None:
    body = '{"name": "f", "arguments": {"a": "x"}}'
    by_token = parts_of(reader(), token("<tool_call>"), spelled(body), token("</tool_call>"))
    by_text = parts_of(reader(), spelled(f"<tool_call>{body}</tool_call>"))
    assert by_token == by_text
    assert [part.kind for part in by_token] == [PartKind.TOOL_START, PartKind.TOOL_ARGS]


def test_special_tokens_are_no_text() -> None:
    assert parts_of(reader(), spelled("a"), token("<|im_end|>"), spelled("b")) == [
        Part(PartKind.CONTENT, "ab")
    ]
    assert parts_of(reader(None), spelled("a"), token("<|im_end|>"), spelled("b")) == [
        Part(PartKind.CONTENT, "ab")
    ]


def test_an_end_marker_without_its_begin_is_dropped_as_a_token_and_kept_as_text() -> None:
    assert parts_of(reader(), spelled("a"), token("</tool_call>")) == [Part(PartKind.CONTENT, "a")]
    assert parts_of(reader(), spelled("a</tool_call>")) == [Part(PartKind.CONTENT, "a</tool_call>")]


def test_markup_is_content_where_nothing_is_to_be_read() -> None:
    found = parts_of(reader(None), token("<tool_call>"), spelled("x"), token("</tool_call>"))
    assert found == [Part(PartKind.CONTENT, "<tool_call>x</tool_call>")]


def test_a_stop_string_in_the_reasoning_ends_nothing() -> None:
    read = reader(FORMAT, ".")
    found = parts_of(read, token("<think>"), spelled("a. b."), token("</think>"), spelled("c. d"))
    assert found == [Part(PartKind.REASONING, "a. b."), Part(PartKind.CONTENT, "c")]
    assert read.ended
    assert read.parser.stop == "."


def test_an_unknown_format_is_an_error() -> None:
    with pytest.raises(KeyError):
        reader(OutputFormat("nothing", "hermes", tools=TOOLS))
