"""With which part a token's log probability is returned, and how the token is spelled."""

import math

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from node.engine.decoding.output import OutputReader
from node.engine.model.detokenizer import Vocabulary
from node.engine.sampling.logprobs import LogprobBuffer, TopLogprobs, token_logprob
from node.ipc.generate import GenerateRequest, OutputFormat
from node.ipc.messages import Alternative, Part, PartKind, TokenLogprob
from tests.node.engine.decoding.test_output import FORMAT, TOKENIZER, token
from tests.node.engine.decoding.test_output import spelled as ids_of


class Read:
    """A sequence's tokens, each as likely as the place it has."""

    def __init__(self, output: OutputFormat | None = FORMAT, *stops: str, count: int = 0) -> None:
        self.parts: list[Part] = []
        self.reader = OutputReader(
            Vocabulary(TOKENIZER),
            GenerateRequest("u", (), 99, stops=stops, output=output, logprobs=count),
        )
        self.at = 0

    def feed(self, *runs: list[int]) -> "Read":
        for number in (number for run in runs for number in run):
            self.parts += self.reader.read(number, TopLogprobs(-float(self.at), [], []))
            self.at += 1
        return self

    def end(self, last: int | None = None) -> list[tuple[PartKind, str, str]]:
        """Ends the output; returns for each part its kind, its text, and the texts of the tokens
        returned with it."""
        self.parts += self.reader.end(last)
        return [
            (part.kind, part.text, "".join(each.token.text for each in part.logprobs))
            for part in self.parts
        ]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [each for part in self.parts for each in part.logprobs]


def test_all_logprobs_are_returned_of_an_answer_that_is_content_as_generated() -> None:
    assert Read(None).feed(ids_of("ab")).end() == [
        (PartKind.CONTENT, "a", "a"),
        (PartKind.CONTENT, "b", "b"),
    ]


def test_no_logprobs_are_returned_of_reasoning_nor_of_its_markers() -> None:
    read = Read().feed(token("<think>"), ids_of("ab"), token("</think>"), ids_of("c"))
    found = read.end()
    assert [each for each in found if each[2]] == [(PartKind.CONTENT, "c", "c")]
    assert [each.token.logprob for each in read.logprobs] == [-4.0]


def test_a_marker_that_is_spelled_out_has_no_logprobs_once_it_is_one() -> None:
    tokenizer = Tokenizer(models.BPE(TOKENIZER.get_vocab(with_added_tokens=False), []))
    tokenizer.decoder = decoders.ByteLevel()
    request = GenerateRequest("u", (), 99, output=FORMAT, logprobs=0)
    reader = OutputReader(Vocabulary(tokenizer), request)
    likely = TopLogprobs(-1.0, [], [])
    ids = ids_of("<think>b</think>c")
    found = [part for each in ids for part in reader.read(each, likely)] + reader.end()
    texts = ["".join(each.token.text for each in part.logprobs) for part in found]
    assert [(part.text, text) for part, text in zip(found, texts, strict=True)] == [
        ("b", ""),
        ("c", "c"),
    ]


def test_no_logprobs_are_returned_of_a_call() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'
    found = Read().feed(ids_of("hi"), ids_of(call)).end()
    assert {each[0] for each in found} == {
        PartKind.CONTENT,
        PartKind.TOOL_START,
        PartKind.TOOL_ARGS,
    }
    assert "".join(each[2] for each in found) == "hi"


def test_logprobs_of_withheld_text_are_returned_with_that_text() -> None:
    found = Read().feed(ids_of("a<tool"), ids_of("x")).end()
    assert found[0] == (PartKind.CONTENT, "a", "a")
    assert found[1] == (PartKind.CONTENT, "<toolx", "<toolx")


def test_the_tokens_of_a_stop_string_are_returned_with_no_part() -> None:
    found = Read(None, "END").feed(ids_of("ab"), ids_of("EN"), ids_of("D")).end()
    assert "".join(each[2] for each in found) == "ab"


def test_logprobs_of_text_withheld_at_the_end_are_returned_then() -> None:
    found = Read(None, "END").feed(ids_of("abEN")).end()
    assert found[-1] == (PartKind.CONTENT, "EN", "EN")


def test_an_incomplete_character_is_returned_token_by_token_once_it_is_whole() -> None:
    read = Read(None).feed(ids_of("é"))
    assert read.end() == [(PartKind.CONTENT, "é", "\N{REPLACEMENT CHARACTER}" * 2)]
    assert b"".join(each.token.data for each in read.logprobs) == "é".encode()


def test_the_token_that_ends_the_sequence_is_not_returned() -> None:
    read = Read(None).feed(ids_of("a"))
    assert read.end(token("<|im_end|>")[0]) == [(PartKind.CONTENT, "a", "a")]


def test_requests_without_logprobs_get_none() -> None:
    reader = OutputReader(Vocabulary(TOKENIZER), GenerateRequest("u", (), 99))
    assert reader.read(ids_of("a")[0]) == [Part(PartKind.CONTENT, "a")]


def test_parts_without_content_drop_what_waits() -> None:
    waiting = LogprobBuffer()
    waiting.add(TokenLogprob(Alternative("a", b"a", -1.0)))
    assert waiting.attach([]) == []
    reasoning = Part(PartKind.REASONING, "x")
    assert waiting.attach([reasoning]) == [reasoning]
    content = Part(PartKind.CONTENT, "y")
    assert waiting.attach([content]) == [content]


def test_the_likeliest_are_returned_up_to_what_was_requested_and_could_be_sampled() -> None:
    a, b, c = (ids_of(letter)[0] for letter in "abc")
    spell = Vocabulary(TOKENIZER).spelled
    likely = TopLogprobs(-0.5, [a, b, c], [-0.5, -1.0, -math.inf])
    found = token_logprob(spell, a, likely, 3)
    assert found == TokenLogprob(
        Alternative("a", b"a", -0.5), (Alternative("a", b"a", -0.5), Alternative("b", b"b", -1.0))
    )
    assert len(token_logprob(spell, a, likely, 1).top) == 1
    assert token_logprob(spell, a, TopLogprobs(1e-7, [], []), 0) == TokenLogprob(
        Alternative("a", b"a", 0.0)
    )


def sentence_piece(decoder: decoders.Decoder) -> Tokenizer:
    vocabulary = {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "a": 3, "\u2581the": 4, "\u2581": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence(
            [
                decoders.Replace("\u2581", " "),
                decoders.ByteFallback(),
                decoders.Fuse(),
                decoders.Strip(" ", 1, 0),
            ]
        ),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    ],
)
def test_a_token_is_spelled_as_it_stands_within_a_text(decoder: decoders.Decoder) -> None:
    vocabulary = Vocabulary(sentence_piece(decoder))
    assert vocabulary.spelled(4) == (" the", b" the")
    assert vocabulary.spelled(3) == ("a", b"a")
    assert vocabulary.spelled(1) == ("\N{REPLACEMENT CHARACTER}", b"\xc3")
    assert vocabulary.spelled(6) == ("<s>", b"<s>")
    assert vocabulary.spelled(99) == ("", b"")


def test_a_byte_level_token_is_spelled_by_its_bytes() -> None:
    vocabulary = Vocabulary(TOKENIZER)
    assert vocabulary.spelled(ids_of(" ")[0]) == (" ", b" ")
    assert vocabulary.spelled(token("<think>")[0]) == ("<think>", b"<think>")
    assert vocabulary.spelled(9999) == ("", b"")


def test_continuations_of_words_are_spelled_without_their_marker() -> None:
    words = {"[UNK]": 0, "a": 1, "dog": 2, "##s": 3}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    vocabulary = Vocabulary(tokenizer)
    assert vocabulary.spelled(2) == (" dog", b" dog")
    assert vocabulary.spelled(3) == ("s", b"s")
