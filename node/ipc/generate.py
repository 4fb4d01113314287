"""What is asked of an engine: one row, or several with one prompt."""

from enum import StrEnum
from typing import Any

import msgspec


class SamplingParams(msgspec.Struct, frozen=True):
    """How one row picks its tokens. Every value is already validated by the dialect."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit; -1 and values beyond the vocabulary are brought to 0."""
    min_p: float = 0.0
    seed: int | None = None
    """None draws from the operating system's entropy."""
    repetition_penalty: float = 1.0
    """Over prompt and output: positive logits divided, negative ones multiplied."""
    presence_penalty: float = 0.0
    """Subtracted once from each token that the output holds already."""
    frequency_penalty: float = 0.0
    """Subtracted for each time that the output holds the token."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, addend)."""


class GenerateRequest(msgspec.Struct, frozen=True):
    """One row: what to continue, how to sample, when to end."""

    uid: str
    tokens: tuple[int, ...]
    max_tokens: int | None
    """None: as many as the context has room for."""
    sampling: SamplingParams = SamplingParams()
    stops: tuple[str, ...] = ()
    """Stop strings, matched on the text and never part of it."""
    boundaries: tuple[int, ...] = ()
    """Ascending lengths of the prompt at which a message ends: where a later prompt may diverge."""
    reusable_tokens: int | None = None
    """How much of the prompt the next turn's prompt begins with; None: all, and the answer too."""
    dropped_answer: tuple[int, ...] = ()
    """How an answer begins that the next turn's prompt does not repeat (with reasoning, which the
    template drops): it is not kept."""
    warm: bool = False
    """Only prefill the prompt and keep it, pinned; there is no output."""
    output: "OutputFormat | None" = None
    """None: the output is content, as it comes."""
    constraint: "Constraint | None" = None
    """What the answer must be; nothing where `output.must_call` is set, since calls go before."""
    thinking_tokens: int | None = None
    """Most tokens of reasoning before its end is forced; None: no limit."""
    logprobs: int | None = None
    """How many of the likeliest tokens are told with each token of content; 0: its own probability
    only; None: none."""
    salt: str = ""
    """Shares KV with requests of the same salt only."""
    choices: int = 1
    """Answers to the same prompt, which is prefilled once; the i-th has `seed` + i."""


class ConstraintKind(StrEnum):
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CHOICE = "choice"


JSON_KINDS = frozenset({ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA})


class Constraint(msgspec.Struct, frozen=True):
    """What the text of an answer has to be, reasoning aside."""

    kind: ConstraintKind
    param: str
    """The body's field that asks for it, for errors."""
    text: str = ""
    """The schema as JSON; the pattern; the grammar; a JSON list of strings for `CHOICE`."""


class ToolSchema(msgspec.Struct, frozen=True):
    """A function that the output may call."""

    name: str
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments, an object; empty where the client gave none."""
    strict: bool = False
    """The arguments are held to the schema also where no call is forced."""
    is_wished: bool = False
    """As `strict` where that can be held, and where not, as if it was not asked for."""
    param: str = "tools"
    """The body's field that holds the schema, for errors."""


class OutputFormat(msgspec.Struct, frozen=True):
    """How to read a row's output."""

    reasoning: str = "none"
    """Name of a reasoning format of `node.parsing`; `none`: reasoning stays in the content."""
    tool_calls: str = "none"
    """Name of a tool-call format of `node.parsing`; `none`: calls stay in the content."""
    prompt_tail: str = ""
    """The end of the rendered prompt, from the last message's end on: what the output goes on
    from, and whether it begins within reasoning."""
    tools: tuple[ToolSchema, ...] = ()
    """Only these are called; without any, a call's markup is content."""
    parallel_calls: bool = True
    """False: the row ends with its first call."""
    repeated_calls: bool = False
    """True: a call that says exactly what an earlier one said is told again."""
    must_call: bool = False
    """The answer is a call of one of `tools`, or several where `parallel_calls` lets it."""
    must_call_param: str = "tool_choice"
    """The body's field that asks for it, for errors."""
    streams_calls: bool = False
    """True: the arguments of a call are told as they come, where that is safe. One that turns out
    to be none then ends the row with an error."""
    is_json: bool = False
    """The answer's text is JSON: a code fence around it is no part of it."""
