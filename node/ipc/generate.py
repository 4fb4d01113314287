"""A request to an engine: one row, or several that share a prompt."""

from enum import StrEnum
from typing import Any

import msgspec


class SamplingParams(msgspec.Struct, frozen=True):
    """Sampling parameters of one row, validated by the dialect."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit; -1 and values beyond the vocabulary are treated as 0."""
    min_p: float = 0.0
    seed: int | None = None
    """None uses the operating system's entropy."""
    repetition_penalty: float = 1.0
    """Over prompt and output: divides positive logits, multiplies negative ones."""
    presence_penalty: float = 0.0
    """Subtracted once from each token that the output contains."""
    frequency_penalty: float = 0.0
    """Subtracted for each occurrence of the token in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Pairs of token id and addend."""


class GenerateRequest(msgspec.Struct, frozen=True):
    """One row: its prompt, its sampling, and its end conditions."""

    uid: str
    tokens: tuple[int, ...]
    max_tokens: int | None
    """None means as many as the context has room for."""
    sampling: SamplingParams = SamplingParams()
    stops: tuple[str, ...] = ()
    """Stop strings, matched on the text and never part of it."""
    boundaries: tuple[int, ...] = ()
    """Ascending prompt lengths at which a message ends: a later prompt may diverge there."""
    reusable_tokens: int | None = None
    """Number of leading prompt tokens that the next turn's prompt repeats; None means the whole
    prompt and the output."""
    dropped_output: tuple[int, ...] = ()
    """First tokens of an output that the next turn's prompt does not repeat, because the template
    drops reasoning; such an output is not stored."""
    warm: bool = False
    """True prefills the prompt and stores it pinned; there is no output."""
    output: "OutputFormat | None" = None
    """None means that the output is content as it is."""
    constraint: "Constraint | None" = None
    """Constraint on the output; ignored if `output.must_call` is set, since forced calls take
    precedence."""
    thinking_tokens: int | None = None
    """Thinking budget: most tokens of reasoning before its end is forced; None means no limit."""
    logprobs: int | None = None
    """Number of likeliest tokens reported with each content token; 0 reports only its own
    probability, None reports nothing."""
    salt: str = ""
    """Only requests with the same salt share KV."""
    choices: int = 1
    """Number of outputs for the prompt, which is prefilled once; the i-th has `seed` + i."""


class ConstraintKind(StrEnum):
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    CHOICE = "choice"


JSON_KINDS = frozenset({ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA})


class Constraint(msgspec.Struct, frozen=True):
    """Constraint on the text of an output, reasoning excluded."""

    kind: ConstraintKind
    param: str
    """Field of the body that contains the constraint, for errors."""
    text: str = ""
    """The schema as JSON; the pattern; the grammar; a JSON list of strings for `CHOICE`."""


class ToolSchema(msgspec.Struct, frozen=True):
    """A function that the output may call."""

    name: str
    parameters: dict[str, Any] = {}
    """JSON schema of the arguments, an object; empty if the client sent none."""
    strict: bool = False
    """True constrains the arguments to the schema even if no call is forced."""
    strict_if_possible: bool = False
    """True applies `strict` if the schema can be enforced, and ignores it otherwise."""
    param: str = "tools"
    """Field of the body that contains the schema, for errors."""


class OutputFormat(msgspec.Struct, frozen=True):
    """Settings of the output parser for one row."""

    reasoning: str = "none"
    """Name of a reasoning format of `node.parsing`; `none` leaves reasoning in the content."""
    tool_calls: str = "none"
    """Name of a tool-call format of `node.parsing`; `none` leaves calls in the content."""
    prompt_tail: str = ""
    """End of the rendered prompt, from the end of the last message on: text that the output
    continues, and that shows whether it begins inside reasoning."""
    tools: tuple[ToolSchema, ...] = ()
    """Tools that may be called; without any, the markup of a call is content."""
    parallel_calls: bool = True
    """False ends the row with its first call."""
    repeated_calls: bool = False
    """True passes on a call that is equal to an earlier one."""
    must_call: bool = False
    """True if the output must be a call of one of `tools`, or several if `parallel_calls` allows
    it."""
    must_call_param: str = "tool_choice"
    """Field of the body that forces the call, for errors."""
    streams_calls: bool = False
    """True streams the arguments of a call where that is safe. If the text then proves to be no
    call, the row ends with an error."""
    is_json: bool = False
    """True if the text of the output is JSON: a code fence around it is removed."""
