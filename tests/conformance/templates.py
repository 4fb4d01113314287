"""Real chat templates: our prompt builder against the renderings of the transformers library."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any
from unittest import mock

from node.errors import BadRequest
from node.ipc.generate import SamplingParams
from node.parsing.selection import select_formats
from node.prompt.template.abilities import Abilities
from node.prompt.template.chat import ChatRenderer
from node.prompt.template.chat_template import ChatTemplate, import_transformers
from node.prompt.template.options import template_variables
from node.request import MediaPart, Message, TemplateOptions, TextPart, TextRequest, Tool, ToolCall
from tests.conformance.result import Result

Context = dict[str, Any]
Rewrite = Callable[[Context, Abilities], Context | None]
"""The context as our normalization brings it to the template; None where a rule does not apply."""


def check_templates(corpus: Path) -> Result:
    """Every rendering of `chat_templates/golden.jsonl`. Ours equals the golden text, or what the
    library makes of the messages under one of the rules of `DOCUMENTED`. Where the template
    refuses the messages as they are, ours shows all of them."""
    folder = corpus / "chat_templates"
    if not (folder / "golden.jsonl").exists():
        return Result(skipped=f"{folder} has no golden.jsonl.")
    given = json.loads((folder / "golden_contexts.json").read_text())
    index = json.loads((folder / "index.json").read_text())
    result, reasons = Result(), Counter[str]()
    with _clock_at(datetime.fromisoformat(given["now"])):
        renderers = {each["file"]: _renderer(folder, each) for each in index}
        for line in (folder / "golden.jsonl").read_text().splitlines():
            row = json.loads(line)
            context = given["contexts"][row["context"]]
            problem, reason = _check(renderers[row["template"]], row, context)
            result.total += 1
            reasons[reason] += 1
            if problem:
                result.failing.append(f"{row['template']} {row['context']}: {problem}")
            else:
                result.passed += 1
    result.notes += [f"{count:4} {reason}" for reason, count in reasons.most_common()]
    result.notes += [_selected(folder, each) for each in index]
    return result


def _clock_at(now: datetime) -> Any:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return now if tz is None else now.replace(tzinfo=tz)

    import_transformers()
    return mock.patch("transformers.utils.chat_template_utils.datetime", Clock)


def _template(folder: Path, entry: Mapping[str, str]) -> ChatTemplate:
    specials = {name: entry[name] for name in ("bos_token", "eos_token") if entry[name]}
    # The golden texts are what the authors' programs make.
    return ChatTemplate((folder / entry["file"]).read_text(), specials, normalize=False)


def _renderer(folder: Path, entry: Mapping[str, str]) -> ChatRenderer:
    template = _template(folder, entry)
    return ChatRenderer(template, select_formats(template.text, ()).tool_calls)


def _selected(folder: Path, entry: Mapping[str, str]) -> str:
    formats = select_formats((folder / entry["file"]).read_text(), ())
    name = entry["file"].removesuffix(".jinja")
    return f"{name}: reasoning {formats.reasoning}, tool calls {formats.tool_calls}"


def _check(renderer: ChatRenderer, row: Mapping[str, Any], context: Context) -> tuple[str, str]:
    """(what is wrong, or nothing; why that is right)."""
    request = _request(context)
    generation = context.get("add_generation_prompt", True)
    try:
        text = renderer.apply(request, request.messages or (), generation=generation)
    except BadRequest as exc:
        return f"refused: {exc.message}", "failed"
    if text == row.get("rendered"):
        return "", "equal"
    if "error" in row:
        missing = [word for word in _words(context) if word not in text]
        return (f"lacks {missing}", "failed") if missing else ("", "rendered where it was refused")
    for reason, rewrite in DOCUMENTED.items():
        rewritten = rewrite(context, renderer.abilities)
        if rewritten is not None and _renders(renderer, rewritten) == text:
            return "", reason
    missing = [word for word in _words(context) if word not in text]
    if not missing and context.get("tools") and not renderer.abilities.tools:
        return "", "tools described in words of our own"
    if not missing and not renderer.abilities.calls:
        return "", "calls spelled as the model does"
    return "differs", "failed"


def _renders(renderer: ChatRenderer, context: Context) -> str | None:
    """Returns the library's rendering, without our normalization; None if it refuses."""
    try:
        return renderer.template.render(
            context["messages"],
            context.get("tools"),
            context.get("kwargs", {}),
            generation=context.get("add_generation_prompt", True),
        )
    except BadRequest:
        return None


def _words(context: Context) -> list[str]:
    """Returns the words that no prompt may lack: texts, and names of tools and calls."""
    words = [tool["function"]["name"] for tool in context.get("tools", ())]
    for message in context["messages"]:
        parts = message["content"]
        texts = [parts] if isinstance(parts, str) else [part.get("text", "") for part in parts]
        # Templates keep the text beside a call to themselves, and escape what they quote.
        if not message.get("tool_calls"):
            words += [text.strip() for text in texts if '"' not in text]
        words += [call["function"]["name"] for call in message.get("tool_calls", ())]
    return words


# --- the documented normalizations -----------------------------------------------------------


def _developer(context: Context, abilities: Abilities) -> Context | None:
    roles = [message["role"] for message in context["messages"]]
    if "developer" not in roles:
        return None
    known = {"developer": "system"}
    messages = [{**m, "role": known.get(m["role"], m["role"])} for m in context["messages"]]
    rewritten = {**context, "messages": messages}
    return rewritten if abilities.system else _no_system(rewritten, abilities)


def _text_parts(context: Context, _abilities: Abilities) -> Context | None:
    messages = []
    for message in context["messages"]:
        content = message["content"]
        if isinstance(content, list):
            content = "\n".join(part.get("text", "") for part in content)
        messages.append({**message, "content": content})
    return {**context, "messages": messages}


def _thinking(context: Context, abilities: Abilities) -> Context | None:
    options = _options(context)
    return {**context, "kwargs": template_variables(options, abilities)}


def _one_call_each(context: Context, abilities: Abilities) -> Context | None:
    if abilities.parallel_calls:
        return None
    messages: list[Context] = []
    results = {m["tool_call_id"]: m for m in context["messages"] if m["role"] == "tool"}
    for message in context["messages"]:
        for at, call in enumerate(message.get("tool_calls", ())):
            content = message["content"] if at == 0 else ""
            messages += [{**message, "content": content, "tool_calls": [call]}, results[call["id"]]]
        if not message.get("tool_calls") and message["role"] != "tool":
            messages.append(message)
    return {**context, "messages": messages}


def _text_before_calls(context: Context, abilities: Abilities) -> Context | None:
    if abilities.text_with_calls or not abilities.text_before_calls:
        return None
    context = _string_arguments(context, abilities) or context
    messages: list[Context] = []
    for message in context["messages"]:
        if message.get("tool_calls") and message["content"]:
            messages.append({"role": message["role"], "content": message["content"]})
            message = {**message, "content": ""}
        messages.append(message)
    return {**context, "messages": messages}


def _system_for_tools(context: Context, abilities: Abilities) -> Context | None:
    if not abilities.tools_with_system:
        return None
    system = {"role": "system", "content": ""}
    return {**context, "messages": [system, *context["messages"]]}


def _no_system(context: Context, abilities: Abilities) -> Context | None:
    first, *rest = context["messages"]
    if abilities.system or first["role"] != "system" or not rest:
        return None
    joined = f"{first['content']}\n\n{rest[0]['content']}"
    return {**context, "messages": [{**rest[0], "content": joined}, *rest[1:]]}


def _string_arguments(context: Context, abilities: Abilities) -> Context | None:
    if not abilities.string_arguments:
        return None
    messages = []
    for message in context["messages"]:
        calls = []
        for call in message.get("tool_calls", ()):
            arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            calls.append({**call, "function": {**call["function"], "arguments": arguments}})
        messages.append({**message, "tool_calls": calls} if calls else message)
    return {**context, "messages": messages}


DOCUMENTED: Mapping[str, Rewrite] = {
    "a developer's message is a system message": _developer,
    "text in parts is one text": _text_parts,
    "thinking under the names that the template reads": _thinking,
    "one call a message": _one_call_each,
    "a system message, without which the template shows no tools": _system_for_tools,
    "a system message that the template would drop is in the first user's": _no_system,
    "arguments as JSON text, which would else be spelled as Python's": _string_arguments,
    "the text of calls that it would lose is a message before them": _text_before_calls,
}


# --- what a client would request -------------------------------------------------------------


def _options(context: Context) -> TemplateOptions:
    kwargs = context.get("kwargs", {})
    return TemplateOptions(kwargs.get("enable_thinking"), kwargs.get("reasoning_effort"), kwargs)


def _request(context: Context) -> TextRequest:
    return TextRequest(
        model="m",
        sampling=SamplingParams(),
        stops=(),
        max_tokens=None,
        stream=False,
        messages=tuple(_message(each) for each in context["messages"]),
        tools=tuple(Tool(each["function"]) for each in context.get("tools", ())),
        template=_options(context),
    )


def _message(given: Mapping[str, Any]) -> Message:
    content = given["content"]
    if isinstance(content, list):
        content = tuple(
            TextPart(part["text"]) if part["type"] == "text" else MediaPart(part["type"], "")
            for part in content
        )
    calls = [call["function"] | {"id": call["id"]} for call in given.get("tool_calls", ())]
    return Message(
        given["role"],
        content,
        given.get("reasoning_content", ""),
        tuple(
            ToolCall(c["id"], c["name"], json.dumps(c["arguments"], ensure_ascii=False))
            for c in calls
        ),
        given.get("tool_call_id", ""),
        given.get("name", ""),
    )
