"""Compiles a request's structured output: grammars of the whole output, from the request's
constraint and tools and from the model's output format."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from node.engine.constraints.grammar import CLIENT_START, Compiler, Grammar, TooLarge
from node.ipc.generate import (
    JSON_KINDS,
    Constraint,
    ConstraintKind,
    GenerateRequest,
    OutputFormat,
    ToolSchema,
)
from node.parsing.constraints.arguments import object_of_arguments
from node.parsing.constraints.lark import Lark
from node.parsing.constraints.schema import UnsupportedConstraint
from node.parsing.fence import FENCES
from node.parsing.format import has_begun_answer
from node.parsing.output_layout import layout_of, reads_calls
from node.parsing.selection import NONE

MAX_CHOICES = 1_900
"""Most texts of a `choice` constraint: the library follows up to 2,000 alternatives at a time."""
_ANY_ARGUMENTS = {"type": "object", "additionalProperties": True}
_ANY_TEXT = r"(.|\n)*"
_MAY_BE_EMPTY = (ConstraintKind.REGEX, ConstraintKind.LARK)
"""Kinds that may match no text, which shows only if they are compiled alone."""


@dataclass(frozen=True, slots=True)
class AnswerGrammars:
    """The grammars of an output: `at_begin` and `behind_reasoning`, or only `calls`."""

    at_begin: Grammar | None
    """Grammar of the whole output; after the begin of reasoning it allows any text."""
    behind_reasoning: Grammar | None
    """Grammar of the output after its reasoning."""
    straddling: frozenset[int] = frozenset()
    """Tokens that could contain the end of the reasoning and more text after it."""
    calls: Grammar | None = None
    """Grammar of a block of calls in an otherwise unconstrained answer."""
    openers: tuple[str, ...] = ()
    """Texts with which such a block begins; each begins with an added token."""
    is_best_effort: bool = False
    """True if the output goes on unconstrained when the grammar fails, instead of ending."""

    @property
    def is_empty(self) -> bool:
        """True if nothing is constrained."""
        return self.at_begin is None and self.calls is None


def is_constrained(request: GenerateRequest) -> bool:
    """True if the answer or its calls need a grammar."""
    return _must_compile(request) or bool(_optional_schemas(request))


def compile_answer(
    compiler: Compiler, request: GenerateRequest, tokens: Mapping[str, int]
) -> AnswerGrammars:
    """Compiles the grammars of a request that `is_constrained`. `tokens` are the ids of added
    tokens by their text. Runs in the compiler's thread. Raises `UnsupportedConstraint`."""
    try:
        answer = _compiled(compiler, request, tokens)
    except UnsupportedConstraint:
        if _must_call(request) or not _optional_schemas(request):
            raise
        request = _without_optional_schemas(request)
        if not is_constrained(request):
            return AnswerGrammars(None, None)
        return _compiled(compiler, request, tokens)
    return answer if _must_compile(request) else replace(answer, is_best_effort=True)


def _compiled(
    compiler: Compiler, request: GenerateRequest, tokens: Mapping[str, int]
) -> AnswerGrammars:
    if _must_call(request) and request.constraint is not None:
        # The forced call overrides the constraint, but an invalid constraint is still an error.
        _GrammarBuilder(compiler, msgspec.structs.replace(request, output=None), tokens).compile()
    builder = _GrammarBuilder(compiler, request, tokens)
    try:
        return builder.compile()
    except TooLarge:
        raise
    except UnsupportedConstraint as error:
        loose = builder.without_loose_schemas(error)
        return loose.compile()


class _GrammarBuilder:
    """Builds and compiles the grammars of one request."""

    def __init__(
        self, compiler: Compiler, request: GenerateRequest, tokens: Mapping[str, int]
    ) -> None:
        self._compiler = compiler
        self._request = request
        self._tokens = tokens
        self._constraint = None if _must_call(request) else request.constraint

    @property
    def _param(self) -> str:
        """The request's field that an error names unless a tool is at fault."""
        if self._constraint is not None:
            return self._constraint.param
        output = self._request.output
        return "tool_choice" if output is None else output.must_call_param

    def compile(self) -> AnswerGrammars:
        output = self._request.output
        if output is not None and self._constraint is None and not output.must_call:
            return self._optional_calls(output)
        if output is None:
            lark = Lark(self._tokens)
            plain = self._compiled(lark, self._content(lark))
            return AnswerGrammars(plain, plain)
        if self._constraint is not None and self._constraint.kind in _MAY_BE_EMPTY:
            lark = Lark(self._tokens)
            self._compiled(lark, self._content(lark))
        at_begin = self._output(output, output.prompt_tail)
        return AnswerGrammars(at_begin, self._output(output, None), self._straddling(output))

    def without_loose_schemas(self, error: UnsupportedConstraint) -> "_GrammarBuilder":
        """Returns a builder that allows any arguments for the optional tools whose schemas cannot
        be compiled. Raises the error of the field at fault if there is no such tool."""
        output, constraint = self._request.output, self._constraint
        if constraint is not None:
            lark = Lark(self._tokens)
            self._compiled(lark, self._content(lark))
        if output is None:
            raise error
        tools: list[ToolSchema] = []
        for tool in output.tools:
            try:
                lark = Lark(self._tokens)
                self._compiled(lark, self._calls(lark, output, (tool,), None), tool.param)
                tools.append(tool)
            except UnsupportedConstraint as own:
                if own.param != tool.param:
                    # Not the schema's fault: the format's calls cannot be constrained.
                    raise UnsupportedConstraint(str(own), self._param) from own
                if output.must_call or tool.strict:
                    raise
                tools.append(msgspec.structs.replace(tool, parameters=_ANY_ARGUMENTS))
        if tools == list(output.tools):
            raise error
        output = msgspec.structs.replace(output, tools=tuple(tools))
        request = msgspec.structs.replace(self._request, output=output)
        return _GrammarBuilder(self._compiler, request, self._tokens)

    def _output(self, output: OutputFormat, prompt_tail: str | None) -> Grammar:
        """Compiles the grammar of the whole output, or of the output after its reasoning if
        `prompt_tail` is None."""
        lark, spelling = Lark(self._tokens), layout_of(output)
        ways = []
        if self._constraint is not None:
            content = self._content(lark)
            is_json = output.is_json and self._constraint.kind in JSON_KINDS
            if is_json and (prompt_tail is None or not has_begun_answer(prompt_tail)):
                # Many models write JSON in a fence, which is removed from the response.
                begin, end = map(lark.text, FENCES)
                content = lark.one_of([content, f"{begin} {content} {end}"])
            ways.append(spelling.spell_text(lark, content, prompt_tail))
        if reads_calls(output) or output.must_call:
            ways.append(self._calls(lark, output, output.tools, prompt_tail))
        if prompt_tail is not None and output.reasoning != NONE:
            for opening in spelling.reasoning_openings(prompt_tail):
                # A token that begins the reasoning may contain some of its text.
                ways.append(f"{lark.text(opening)} {lark.regex(_ANY_TEXT)}")
        return self._compiled(lark, lark.one_of(ways))

    def _calls(
        self,
        lark: Lark,
        output: OutputFormat,
        tools: Sequence[ToolSchema],
        prompt_tail: str | None,
    ) -> str:
        spelling = layout_of(output)
        parallel = output.parallel_calls
        return spelling.spell_answer_calls(lark, tools, prompt_tail, parallel=parallel)

    def _optional_calls(self, output: OutputFormat) -> AnswerGrammars:
        """Compiles the grammar of optional calls. There is none if the format does not begin a
        block of calls with an added token, since other text may not be a call; the schemas of
        strict tools are then still checked. Raises `UnsupportedConstraint`."""
        lark, spelling = Lark(self._tokens), layout_of(output)
        tokens = tuple(self._tokens)
        openers = tuple(each for each in spelling.openers if each.startswith(tokens))
        if not openers:
            self._check_strict(output)
            return AnswerGrammars(None, None)
        calls = self._compiled(lark, self._calls(lark, output, output.tools, None))
        return AnswerGrammars(None, None, calls=calls, openers=openers)

    def _check_strict(self, output: OutputFormat) -> None:
        """Raises `UnsupportedConstraint` for a strict tool whose schema cannot be compiled."""
        for tool in output.tools:
            if tool.strict:
                lark = Lark({})
                arguments = lark.json(object_of_arguments(tool), tool.param)
                self._compiled(lark, arguments, tool.param)

    def _content(self, lark: Lark) -> str:
        assert self._constraint is not None
        return _content(lark, self._constraint)

    def _compiled(self, lark: Lark, start: str, param: str | None = None) -> Grammar:
        constraint, client = self._constraint, None
        if param is None and constraint is not None and constraint.kind is ConstraintKind.LARK:
            client = constraint.text
        return self._compiler.compile(lark.grammar(start), param or self._param, client)

    def _straddling(self, output: OutputFormat) -> frozenset[int]:
        if output.reasoning == NONE:
            return frozenset()
        ends = [end for end in layout_of(output).reasoning_ends if end not in self._tokens]
        beyond = (self._compiler.tokens_beyond(end[-1]) for end in ends)
        return frozenset().union(*beyond)


def _must_call(request: GenerateRequest) -> bool:
    return request.output is not None and request.output.must_call


def _must_compile(request: GenerateRequest) -> bool:
    """True if the request must be refused when its grammar cannot be compiled."""
    is_strict = any(tool.strict for tool in _callable_tools(request))
    return request.constraint is not None or _must_call(request) or is_strict


def _callable_tools(request: GenerateRequest) -> tuple[ToolSchema, ...]:
    output = request.output
    return output.tools if output is not None and reads_calls(output) else ()


def _optional_schemas(request: GenerateRequest) -> list[ToolSchema]:
    return [tool for tool in _callable_tools(request) if tool.strict_if_possible]


def _without_optional_schemas(request: GenerateRequest) -> GenerateRequest:
    assert request.output is not None
    tools = [
        msgspec.structs.replace(tool, strict_if_possible=False, parameters=_ANY_ARGUMENTS)
        if tool.strict_if_possible
        else tool
        for tool in _callable_tools(request)
    ]
    output = msgspec.structs.replace(request.output, tools=tuple(tools))
    return msgspec.structs.replace(request, output=output)


def _content(lark: Lark, constraint: Constraint) -> str:
    """Returns the Lark expression of the texts that the constraint allows. Raises
    `UnsupportedConstraint`."""
    match constraint.kind:
        case ConstraintKind.JSON_OBJECT:
            return lark.json({"type": "object"}, constraint.param)
        case ConstraintKind.JSON_SCHEMA:
            return lark.json(json.loads(constraint.text), constraint.param)
        case ConstraintKind.REGEX:
            return lark.regex(constraint.text)
        case ConstraintKind.CHOICE:
            # Without added tokens: markup in these texts is plain text.
            plain, texts = Lark({}), json.loads(constraint.text)
            if len(texts) > MAX_CHOICES:
                reason = (
                    f"{constraint.param} cannot be enforced: it has more than {MAX_CHOICES} texts."
                )
                raise UnsupportedConstraint(reason, constraint.param)
            return lark.one_of([plain.text(text) for text in texts])
        case ConstraintKind.LARK:
            return CLIENT_START
