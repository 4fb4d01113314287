"""The reading of text that arrives in pieces; each reading is also cut anywhere."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from node.ipc.messages import PartKind
from node.parsing.scanning.added_tokens import TokenFamily
from node.parsing.scanning.argument_hashes import ArgumentHashes
from node.parsing.scanning.markers import Markers
from node.parsing.scanning.source import Source
from node.parsing.scanning.step import LONGEST_BLOCK, Malformed, OutputEnded, Step

CONTENT, REASONING = PartKind.CONTENT, PartKind.REASONING
Grammar = Callable[[Source, list[Any]], Step[None]]
"""Reads, and notes what it read."""


class Notes:
    """A sink that notes what it is sent."""

    def __init__(self, names: tuple[str, ...] = ("f",)) -> None:
        self.names = names
        self.notes: list[Any] = []

    def emit_text(self, kind: PartKind, text: str) -> None:
        if self.notes and isinstance(self.notes[-1], list) and self.notes[-1][0] is kind:
            self.notes[-1][1] += text
        else:
            self.notes.append([kind, text])

    def resume(self, kind: PartKind) -> None:
        self.notes.append(("resume", kind))

    def mark_edge(self) -> None:
        self.notes.append("edge")

    def emit_call(self, name: str, arguments: str | Mapping[str, Any], call_id: str) -> None:
        self.check_call(name, arguments)
        self.notes.append((name, arguments))

    def earlier_calls(self, name: str) -> list[ArgumentHashes] | None:
        return None

    def begin_call(self, name: str, call_id: str) -> None:
        self.notes.append(("begin", name))

    def add_arguments(self, text: str) -> None:
        self.notes.append(("argue", text))

    def end_call(self, name: str, digests: ArgumentHashes) -> None:
        self.notes.append(("end", name))

    def fail(self, reason: str) -> None:
        self.notes.append(("fail", reason))
        raise OutputEnded

    def check_call(self, name: str, arguments: str | Mapping[str, Any]) -> None:
        if name not in self.names:
            raise Malformed


def run(grammar: Grammar, pieces: Iterable[str]) -> list[Any]:
    """Runs the grammar over the pieces; returns what it and the sink noted."""
    sink = Notes()
    source = Source(sink, {"f": {}})
    steps = grammar(source, sink.notes)
    done = False

    def advance() -> bool:
        try:
            next(steps)
        except StopIteration:
            return True
        return False

    for piece in pieces:
        source.append(piece)
        done = done or advance()
    source.end()
    assert done or advance()
    return sink.notes


def read(grammar: Grammar, text: str) -> list[Any]:
    whole = run(grammar, [text])
    assert run(grammar, text) == whole
    for at in range(1, len(text)):
        assert run(grammar, (text[:at], text[at:])) == whole, at
    return whole


def noting(reading: Callable[[Source], Step[Any]]) -> Grammar:
    """Notes what was read, or that nothing could be, and then emits the rest."""

    def grammar(source: Source, notes: list[Any]) -> Step[None]:
        def block() -> Step[None]:
            notes.append((yield from reading(source)))

        if not (yield from source.attempt("", block(), CONTENT)):
            notes.append("malformed")
        yield from source.rest(CONTENT)

    return grammar


def content(text: str) -> list[Any]:
    return [[CONTENT, text]] if text else []


class TestWhatIsRead:
    @pytest.mark.parametrize(
        ("text", "found", "rest"),
        [("abc", "ab", "c"), ("ab", "ab", ""), ("ac", "a", "c"), ("bc", "", "bc"), ("", "", "")],
    )
    def test_the_longest_literal_that_follows(self, text: str, found: str, rest: str) -> None:
        assert read(noting(lambda s: s.accept("a", "ab")), text) == [found, *content(rest)]

    def test_an_expected_literal_has_to_follow(self) -> None:
        assert read(noting(lambda s: s.expect("ab")), "abc") == ["ab", *content("c")]
        assert read(noting(lambda s: s.expect("ab")), "acb") == ["malformed", *content("acb")]
        assert read(noting(lambda s: s.expect("ab")), "a") == ["malformed", *content("a")]

    def test_characters_ahead_stay(self) -> None:
        assert read(noting(lambda s: s.peek(2)), "abc") == ["ab", *content("abc")]
        assert read(noting(lambda s: s.peek(9)), "abc") == ["abc", *content("abc")]

    def test_characters_in_a_row(self) -> None:
        digits = re.compile("[0-9]*")
        assert read(noting(lambda s: s.run(digits)), "12a3") == ["12", *content("a3")]
        assert read(noting(lambda s: s.run(digits)), "a") == ["", *content("a")]
        assert read(noting(lambda s: s.space()), " \n\tx ") == [" \n\t", *content("x ")]

    def test_text_up_to_a_marker(self) -> None:
        assert read(noting(lambda s: s.capture("<b>", "<bc>")), "a<b<bc>d") == [
            ("a<b", "<bc>"),
            *content("d"),
        ]
        assert read(noting(lambda s: s.capture("<b>")), "a<b") == ["malformed", *content("a<b")]
        assert read(noting(lambda s: s.capture("<b>", at_end=True)), "a<b") == [("a<b", "")]

    @pytest.mark.parametrize(
        "json",
        [
            "{}",
            '{"a": [1, {"b": "}]\\"\\\\"}], "c": "\\u00e9{"}',
            '["a", "b]"]',
            '"a\\"b\\\\"',
            "[[[]]]",
            '{"a": "\n"}',
        ],
    )
    def test_json_up_to_its_end(self, json: str) -> None:
        assert read(noting(lambda s: s.json()), json + "}]") == [json, *content("}]")]

    @pytest.mark.parametrize("text", ['{"a": 1', '{"a": "}', '"a\\', "1", "null", "", " {}", "{]"])
    def test_what_is_no_whole_json_value_is_malformed(self, text: str) -> None:
        assert read(noting(lambda s: s.json_value()), text) == ["malformed", *content(text)]

    def test_the_first_reading_that_can_be_read(self) -> None:
        def first(source: Source) -> Step[None]:
            yield from source.expect("a")
            yield from source.expect("b")
            source.output.emit(CONTENT, "first")

        def second(source: Source) -> Step[None]:
            yield from source.expect("ac")
            source.output.emit(CONTENT, "second")

        def either(source: Source) -> Step[None]:
            yield from source.either(first(source), second(source))

        assert read(noting(either), "ab") == [[CONTENT, "first"], None]
        assert read(noting(either), "ac") == [[CONTENT, "second"], None]
        assert read(noting(either), "ad") == ["malformed", *content("ad")]

    def test_what_may_be_missing_is_returned(self) -> None:
        def reading(source: Source) -> Step[Any]:
            found = yield from source.maybe(spaced(source))
            return found, (yield from source.peek(2))

        def spaced(source: Source) -> Step[str]:
            yield from source.space()
            return (yield from source.expect("ab"))

        assert read(noting(reading), " abc") == [("ab", "c"), *content("c")]
        assert read(noting(reading), " ac") == [(None, " a"), *content(" ac")]

    @pytest.mark.parametrize("way", ["maybe", "either"])
    def test_what_was_emitted_of_a_call_is_not_read_otherwise(self, way: str) -> None:
        def reading(source: Source) -> Step[None]:
            yield from source.space()
            source.calls.open("f").begin_member("a")
            raise Malformed

        def block(source: Source) -> Step[None]:
            if way == "maybe":
                yield from source.maybe(reading(source))
            else:
                yield from source.either(reading(source), source.rest(CONTENT))

        def grammar(source: Source, notes: list[Any]) -> Step[None]:
            source.calls.stream()
            yield from source.expect("<")
            yield from source.attempt("<", block(source), CONTENT)

        with pytest.raises(OutputEnded):
            read(grammar, "< so")

    def test_the_end_is_known_once_it_is_reached(self) -> None:
        def reading(source: Source) -> Step[bool]:
            yield from source.space()
            return source.at_end

        assert read(noting(reading), "  ") == [True]
        assert read(noting(reading), " a") == [False, *content("a")]


MARKS = Markers(["<", "((", ")"])


def blocks(source: Source, notes: list[Any]) -> Step[None]:
    """Calls as `<f>`; what is between `((` and `)` is reasoning."""
    while marker := (yield from source.until(CONTENT, MARKS)):
        notes.append(marker)
        if marker == "<":
            notes.append((yield from source.attempt("<", block(source), CONTENT)))
        elif marker == "((":
            notes.append((yield from source.until(REASONING, MARKS)))


def block(source: Source) -> Step[None]:
    while True:
        name = yield from source.run(re.compile("[a-z]*"))
        end = yield from source.expect(">", ",")
        source.calls.emit(name, {})
        if end == ">":
            return


class TestBlocks:
    def test_text_between_markers_is_emitted_at_once(self) -> None:
        assert read(blocks, "a((b)c") == [
            *([CONTENT, "a"], "((", [REASONING, "b"], ")"),
            [CONTENT, "c"],
        ]
        sink = Notes()
        source = Source(sink, {})
        steps = blocks(source, sink.notes)
        source.append("abc (")
        next(steps)
        assert sink.notes == [[CONTENT, "abc "]]

    def test_a_call_is_emitted_and_its_text_is_not(self) -> None:
        assert read(blocks, "a<f>b") == [
            *([CONTENT, "a"], "<", ("f", {}), True),
            [CONTENT, "b"],
        ]

    @pytest.mark.parametrize("text", ["<", "<f", "<f?>", "<g>", "< f>"])
    def test_a_block_that_is_none_is_text(self, text: str) -> None:
        assert read(blocks, text) == ["<", [CONTENT, "<"], False, *content(text[1:])]

    def test_what_follows_a_call_that_was_emitted_is_read_anew(self) -> None:
        assert read(blocks, "<f,?<f>") == [
            *("<", ("f", {}), True, [CONTENT, "?"]),
            *("<", ("f", {}), True),
        ]

    @pytest.mark.parametrize("extra", [-2, -1, 0, 1, 2, 5000])
    def test_a_block_that_is_too_long_is_text_wherever_it_is_cut(self, extra: int) -> None:
        text = "<" + "f" * (LONGEST_BLOCK + extra - 2)
        expected = run(blocks, [text])
        assert "".join(each[1] for each in expected if isinstance(each, list)) == text
        for size in (1000, 4096, LONGEST_BLOCK - 1, LONGEST_BLOCK, LONGEST_BLOCK + 1):
            assert (
                run(blocks, [text[at : at + size] for at in range(0, len(text), size)]) == expected
            )

    def test_a_longest_block_is_one(self) -> None:
        name = "f" * (LONGEST_BLOCK - 2)

        def read_in(pieces: list[str]) -> list[Any]:
            sink = Notes((name, f"{name}f"))
            source = Source(sink, {})
            steps = blocks(source, sink.notes)
            for piece in pieces:
                source.append(piece)
                next(steps)
            return sink.notes

        assert read_in([f"<{name}>", " "])[1][0] == name
        assert read_in([f"<{name}f", "> "])[1] == [CONTENT, f"<{name}f"]

    def test_calls_that_are_kept_are_emitted_later_or_never(self) -> None:
        def kept(source: Source, notes: list[Any]) -> Step[None]:
            def reading() -> Step[None]:
                yield from source.expect("<")
                source.calls.keep_back()
                yield from block(source)
                yield from source.expect("!")
                for call in source.calls.take_kept():
                    source.calls.emit(*call)

            notes.append((yield from source.attempt("", reading(), CONTENT)))
            yield from source.rest(CONTENT)

        assert read(kept, "<f,f>!x") == [("f", {}), ("f", {}), True, [CONTENT, "x"]]
        assert read(kept, "<f,f>?") == [False, [CONTENT, "<f,f>?"]]

    def test_what_was_settled_is_text_at_once(self) -> None:
        def settling(source: Source, notes: list[Any]) -> Step[None]:
            def reading() -> Step[None]:
                yield from source.expect("<a>")
                source.block.settle()
                yield from source.expect("<b>")
                raise Malformed

            while marker := (yield from source.until(CONTENT, MARKS)):
                notes.append(marker)
                yield from source.attempt(marker, reading(), CONTENT)

        assert read(settling, "<<a><b>c") == [
            *("<", [CONTENT, "<<a>"], "<", [CONTENT, "<b>c"]),
        ]

    def test_white_space_without_end_is_read_in_pieces(self) -> None:
        def spaces(source: Source, notes: list[Any]) -> Step[None]:
            notes.append(len((yield from source.space())))
            yield from source.rest(CONTENT)

        text = " " * (LONGEST_BLOCK + 5)
        assert run(spaces, [text]) == [LONGEST_BLOCK, [CONTENT, " " * 5]]
        assert run(spaces, text) == [LONGEST_BLOCK, [CONTENT, " " * 5]]

    def test_text_behind_a_call_may_be_passed_over(self) -> None:
        def skipping(source: Source, notes: list[Any]) -> Step[None]:
            def reading() -> Step[None]:
                yield from source.expect("<")
                yield from block(source)
                notes.append((yield from source.skip(Markers(["<", "}"]))))

            notes.append((yield from source.attempt("", reading(), CONTENT)))
            yield from source.rest(CONTENT)

        assert read(skipping, "<f>abc}d") == [("f", {}), "}", True, [CONTENT, "d"]]
        assert read(skipping, "<f>abc") == [("f", {}), "", True]


class TestTokens:
    def source(self, markers: frozenset[str] = frozenset()) -> tuple[Source, Notes]:
        sink = Notes()
        return Source(sink, {}, markers), sink

    def finish(self, source: Source, sink: Notes, marks: Markers) -> list[Any]:
        source.end()

        def grammar() -> Step[None]:
            while found := (yield from source.until(CONTENT, marks)):
                sink.notes.append(found)

        assert list(grammar()) == []
        return sink.notes

    def test_a_marker_that_is_a_token_counts_only_as_that(self) -> None:
        source, sink = self.source(frozenset({"<b>"}))
        source.append("a<b>c")
        source.append_token("<b>", special=False)
        source.append("d")
        assert self.finish(source, sink, Markers(["<b>"])) == [
            *([CONTENT, "a<b>c"], "<b>", [CONTENT, "d"])
        ]

    def test_special_tokens_are_no_text_but_those_that_are_kept(self) -> None:
        source, sink = self.source()
        source.tokens.kept = frozenset({"<k>"})
        for token in ("<s>", "<k>", "<n>"):
            source.append("x")
            source.append_token(token, special=token != "<n>")
        assert self.finish(source, sink, Markers([])) == [[CONTENT, "xx<k>x<n>"]]

    def test_an_orphan_is_no_text_where_it_is_a_token(self) -> None:
        source, sink = self.source()
        source.tokens.pair(TokenFamily(frozenset({"<b>"}), frozenset({"</b>"}), drops_ends=True))
        source.append("a</b>")
        source.append_token("</b>", special=False)
        source.append("c")
        assert self.finish(source, sink, Markers([])) == [[CONTENT, "a</b>c"]]

    def test_the_end_of_a_block_that_is_text_stays_with_its_begin(self) -> None:
        source, sink = self.source()
        source.tokens.pair(TokenFamily(frozenset({"<"}), frozenset({">"}), drops_ends=True))
        for piece in ("<", "?", ">", "a", ">"):
            if piece in "<>":
                source.append_token(piece, special=False)
            else:
                source.append(piece)
        source.end()
        assert list(blocks(source, sink.notes)) == []
        assert sink.notes == ["<", [CONTENT, "<"], False, [CONTENT, "?>a"]]
