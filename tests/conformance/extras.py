"""Outputs that go on from a begun answer, that were cut, and real tokens of many models."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from node.ipc.generate import OutputFormat
from tests.conformance.corpus import OUTPUTS, TokenTable, read_case, read_lines
from tests.conformance.formats import output_format
from tests.conformance.outputs import (
    answer_of,
    check_cases,
    difference,
    expected_answer,
    read_pieces,
    read_tokens,
)
from tests.conformance.result import Result


def check_extras(corpus: Path, tables: Sequence[TokenTable]) -> Iterator[tuple[str, Result]]:
    """(name, result) of each file that is there; informative, without a bar."""
    folder = corpus / OUTPUTS / "extras"
    for name, file, check in (
        ("continued answers", "continue_final_message", check_continued),
        ("cut outputs", "partial", check_cut),
        ("real tokens", "real_token_ids", check_tokens),
    ):
        path = folder / f"{file}.jsonl"
        if path.exists():
            yield name, check(list(read_lines(path)), tables)
        else:
            yield name, Result(skipped=f"there is no {path}")


def check_continued(rows: Sequence[Mapping[str, Any]], tables: Sequence[TokenTable]) -> Result:
    """Outputs that go on from the last message of the request."""
    cases = (read_case(row, f"continued:{number:03}") for number, row in enumerate(rows))
    return check_cases(cases, tables).result


def check_cut(rows: Sequence[Mapping[str, Any]], tables: Sequence[TokenTable]) -> Result:
    """Outputs that end within a call: reasoning and content before it are as expected, and no
    call is made up. Ours sends a call only when it is complete, so what the sources send of its
    arguments is left aside, and its markup is content."""
    result = Result(total=len(rows))
    for number, row in enumerate(rows):
        expected = {**row["expected_partial"], "tool_calls": ()}
        case = read_case({**row, "expected": expected}, f"cut:{number:03}")
        form = output_format(case)
        got = answer_of(read_pieces(form, [case.output]))
        before = expected_answer(case, form)
        if (
            got.calls
            or got.reasoning.strip() != before.reasoning.strip()
            or not got.content.startswith(before.content)
        ):
            result.failing.append(f"{case.name} ({case.wire}): {difference(got, before)}")
        else:
            result.passed += 1
    return result


def check_tokens(rows: Sequence[Mapping[str, Any]], tables: Sequence[TokenTable]) -> Result:
    """Outputs without an expectation: no text is lost on the way through the engine's reader."""
    result = Result()
    for number, row in enumerate(rows):
        text, ids = row["completion"], row["token_ids"]
        for table in tables:
            tokens = table.tokens_of(text, ids)
            if tokens is not None:
                break
        else:
            continue
        result.total += 1
        segments = read_tokens(OutputFormat(), table.vocabulary, tokens)
        content = answer_of(segments).content
        # Special tokens are no text: DSML markup holds some.
        expected = table.tokenizer.decode(list(tokens.output), skip_special_tokens=True)
        if content == expected:
            result.passed += 1
        else:
            result.failing.append(f"tokens:{number:03} ({row['model_id']}): {content[:90]!r}")
    result.notes.append(f"{len(rows) - result.total} of {len(rows)} are of other vocabularies")
    return result
