"""The corpus of real model outputs: JSON lines, one file a family; its MANIFEST.md explains."""

import json
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

from node.engine.model.detokenizer import Vocabulary
from node.ipc.generate import ToolSchema

OUTPUTS = "tool_outputs"
TOKENIZERS = "tokenizers"


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: Any
    """JSON value."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The contents of an output."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    family: str
    wire: str
    """The corpus' name of the format that the output is in."""
    scope: str
    """`full`; `tools`: the output is without reasoning; `reasoning`: content may hold calls."""
    output: str
    tools: tuple[ToolSchema, ...]
    expected: Answer
    context: Mapping[str, Any]
    """The known fields of the request and the prompt."""
    token_ids: tuple[int, ...]
    """The tokens as the model generated them, with the one that ended it; empty where they are not
    known."""


class Tokens(NamedTuple):
    """An output as a model made it."""

    output: tuple[int, ...]
    end: int | None
    """The token that ended it; None where that is not known."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A model's vocabulary."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary

    def tokens_of(self, output: str, ids: Sequence[int]) -> Tokens | None:
        """The tokens of an output from what the model made; None where they are another
        vocabulary's."""
        if not ids or not self._decode(ids).startswith(output):
            return None
        # Few tokens follow the output.
        lengths = range(len(ids), 0, -1)
        length = next((each for each in lengths if self._decode(ids[:each]) == output), None)
        if length is None:
            return None
        return Tokens(tuple(ids[:length]), ids[length] if length < len(ids) else None)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)


def read_cases(folder: Path) -> list[Case]:
    """All cases of a folder's files; none where the folder is absent."""
    return [
        read_case(row, f"{path.stem}:{number:03}")
        for path in sorted(folder.glob("*.jsonl"))
        for number, row in enumerate(read_lines(path))
    ]


def read_case(row: Mapping[str, Any], name: str) -> Case:
    """A case from its line; `name` is for one that has none of its own."""
    expected = row["expected"]
    return Case(
        name=row.get("id", name),
        family=row["family"],
        wire=row["format"],
        scope=row.get("scope", "full"),
        output=row["output"],
        tools=tuple(map(_tool, row.get("tools") or ())),
        expected=Answer(
            content=expected.get("content") or "",
            reasoning=expected.get("reasoning") or "",
            calls=tuple(
                Call(call["name"], call["arguments"]) for call in expected.get("tool_calls") or ()
            ),
        ),
        context=row.get("context") or {},
        token_ids=tuple(row.get("token_ids") or ()),
    )


def read_token_tables(corpus: Path) -> list[TokenTable]:
    """The vocabularies that the corpus has."""
    tables = []
    for path in sorted((corpus / TOKENIZERS).glob("*_tokenizer.json.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as text:
            tokenizer = Tokenizer.from_str(text.read())
        tables.append(TokenTable(tokenizer, Vocabulary(tokenizer)))
    return tables


def _tool(tool: Mapping[str, Any]) -> ToolSchema:
    function = tool.get("function", tool)
    return ToolSchema(function["name"], function.get("parameters") or {})
