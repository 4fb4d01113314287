"""The body of Ollama's `/api/generate`."""

from dataclasses import replace

from node.dialects.fields.field_table import FieldTable, Refusal, falsy
from node.dialects.fields.media import text_only
from node.dialects.fields.template import template_options
from node.dialects.fields.thinking import THINKING_NOTES, ThinkingFields, thinking_tokens
from node.dialects.ollama.chat import OllamaRequest, Resolve
from node.dialects.ollama.messages import Images, with_images
from node.dialects.ollama.options import BODY_NOTES, IGNORED, OllamaBody, base_request
from node.dialects.ollama.residency import ResidencyRequest, read_keep_alive
from node.dialects.ollama.response import GenerateLines
from node.dialects.ollama.thinking import read_think
from node.errors import BadRequest, Unsupported
from node.request import BEFORE_ITEMS, Message, TemplateOptions


class OllamaGenerateBody(OllamaBody, ThinkingFields):
    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: Images | None = None


_PICTURES = "This version of mlx-fleet generates no pictures."
OLLAMA_GENERATE = FieldTable(
    body=OllamaGenerateBody,
    notes={
        **BODY_NOTES,
        **THINKING_NOTES,
        "prompt": (
            "A user's message, which the chat template renders. Without it, the model is only "
            "loaded or unloaded."
        ),
        "system": "A system message before it. Not with `raw`.",
        "raw": "true: the model gets the prompt as it is, and its output is not parsed.",
        "images": "Become [a line of text](#pictures-sounds-and-files).",
    },
    refused={
        "suffix": Refusal(falsy, "null or empty"),
        "template": Refusal(falsy, "null or empty", "The template is the model's own."),
        "context": Refusal(
            falsy,
            "null or empty",
            "A response of this server has no context to continue from: send the conversation to "
            "/api/chat.",
        ),
        **{name: Refusal(falsy, "null or 0", _PICTURES) for name in ("width", "height", "steps")},
    },
    ignored=IGNORED,
)


def read_ollama_generate(body: bytes, resolve: Resolve) -> OllamaRequest | ResidencyRequest:
    """Parses a request body. Raises `BadRequest` or `Unsupported`."""
    parsed = OLLAMA_GENERATE.read(body)
    model, keep_alive_s = resolve(parsed.model), read_keep_alive(parsed.keep_alive)
    if not parsed.prompt and not parsed.images:
        return ResidencyRequest(model, keep_alive_s, is_chat=False)
    thinking, effort = read_think(parsed.think)
    request = replace(
        base_request(parsed, model),
        messages=None if parsed.raw else _messages(parsed),
        prompt=_raw_prompt(parsed) if parsed.raw else None,
        prompt_field="prompt",
        template=TemplateOptions()
        if parsed.raw
        else template_options(thinking=thinking, effort=effort, kwargs=None),
        thinking_tokens=None if parsed.raw else thinking_tokens(parsed),
    )
    hides = thinking is False
    return OllamaRequest(request, parsed.model, keep_alive_s, GenerateLines, hides_thinking=hides)


def _messages(body: OllamaGenerateBody) -> tuple[Message, ...]:
    content = with_images(body.prompt or "", body.images, "images")
    system = [Message("system", body.system, source=BEFORE_ITEMS)] if body.system else []
    return tuple(text_only([*system, Message("user", content, source=0)]))


def _raw_prompt(body: OllamaGenerateBody) -> str:
    if body.system:
        raise BadRequest("system is not allowed with raw.", param="system")
    if body.images:
        raise Unsupported("This model takes text only; leave the images out.", param="images")
    return body.prompt or ""
