"""The object `options` of Ollama's requests, and its other fields for sampling and format."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from pydantic import BeforeValidator, Field

from node.dialects.fields.constraints import json_object, json_schema
from node.dialects.fields.field_table import (
    MAX_INT,
    FieldTable,
    Lenient,
    Refusal,
    falsy,
    only,
)
from node.dialects.fields.sampling import (
    SAMPLING_NOTES,
    SamplingFields,
    sampling_params,
    stop_strings,
    token_limit,
)
from node.errors import BadRequest
from node.ipc.generate import Constraint, SamplingParams
from node.request import TextRequest

MAX_TOP_LOGPROBS = 20
RANDOM_SEED = -1
"""The seed by which Ollama's clients say that they want none."""


def _whole(value: object) -> object:
    """Ollama reads 128.0 as 128."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole), Field(ge=-MAX_INT, le=MAX_INT)]


class Options(SamplingFields):
    top_k: Annotated[int, BeforeValidator(_whole), Field(ge=-1)] | None = None
    seed: Annotated[int, BeforeValidator(_whole), Field(ge=-(2**63), le=2**63 - 1)] | None = None
    repeat_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    repeat_last_n: Whole | None = None
    num_predict: Whole | None = None
    stop: object = None


_RUNNER = "A setting of llama.cpp's runner; a model has the settings of its node."
OPTIONS = FieldTable(
    body=Options,
    notes={
        **SAMPLING_NOTES,
        "seed": f"{SAMPLING_NOTES['seed']} {RANDOM_SEED}: none.",
        "repetition_penalty": "Another name of `repeat_penalty`.",
        "repeat_penalty": "Above 0, to 10, over prompt and response. Default 1.",
        "repeat_last_n": (
            "0: no `repeat_penalty`. Any other number changes nothing: the penalty is over prompt "
            "and response."
        ),
        "num_predict": (
            "Most tokens of the response. 0 and less: all that the context has room for."
        ),
        "stop": "A string or up to 16; each ends the response and is not part of it.",
    },
    refused={
        "mirostat": Refusal(falsy, "null or 0"),
        "tfs_z": Refusal(only(1, 1.0), "null or 1"),
        "typical_p": Refusal(only(1, 1.0), "null or 1"),
        "draft_num_predict": Refusal(falsy, "null or 0"),
    },
    ignored={
        "num_ctx": "A model has its whole context; a longer prompt is refused and never cut.",
        "num_keep": "A prompt is never cut.",
        "penalize_newline": "Line ends are tokens like others.",
        "mirostat_tau": "Has a meaning only with `mirostat`.",
        "mirostat_eta": "Has a meaning only with `mirostat`.",
        **dict.fromkeys(
            (
                "embedding_only",
                "f16_kv",
                "logits_all",
                "low_vram",
                "main_gpu",
                "num_batch",
                "num_gpu",
                "num_thread",
                "numa",
                "use_mlock",
                "use_mmap",
                "vocab_only",
            ),
            _RUNNER,
        ),
    },
)
"""The members of `options`; unknown ones are ignored, as Ollama does."""


class OllamaBody(Lenient):
    """The fields that chat and generate share."""

    model: Annotated[str, Field(min_length=1)]
    stream: bool | None = None
    format: object = None
    options: Options | None = None
    keep_alive: object = None
    think: object = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None


BODY_NOTES: Mapping[str, str] = {
    "model": "A model of `/api/tags`, with or without `:latest`.",
    "stream": "JSON lines; the last one has `done` and the usage. Default true.",
    "format": "`json`, or a JSON schema, to which the text is constrained. Thinking is not.",
    "options": "See [options](ollama.md#options).",
    "keep_alive": (
        "Seconds, or a duration such as `5m`, after which the idle model is unloaded; negative: "
        "never. On a router, and on a node behind one, the fleet decides, and this has no effect "
        "([residency](ollama.md#load-and-unload-by-ollamas-clients))."
    ),
    "think": (
        "true or false, or low, medium, high or max for templates with efforts. Default: as the "
        "model does. true for a model without thinking is a 400."
    ),
    "logprobs": "true: the log probability of each token of the text.",
    "top_logprobs": (
        f"0 to {MAX_TOP_LOGPROBS} of the likeliest tokens with each. Only with `logprobs`."
    ),
}
IGNORED: Mapping[str, str] = {
    "truncate": "A prompt is never cut: one that is too long is a 400.",
    "shift": "A response ends where the context ends.",
    "user": "A label.",
}


def base_request(body: OllamaBody, model: str) -> TextRequest:
    """Returns the request as far as chat and generate read it alike, without its prompt. Raises
    `BadRequest` or `Unsupported`."""
    return TextRequest(
        model=model,
        sampling=_sampling(body),
        stops=_stops(body),
        max_tokens=_limit(body),
        stream=body.stream is not False,
        constraint=_constraint(body.format),
        logprobs=_logprobs(body),
    )


def _sampling(body: OllamaBody) -> SamplingParams:
    """Returns the sampling options. Raises `Unsupported`."""
    options = body.options or Options()
    OPTIONS.refuse(options, "options")
    params = sampling_params(options)
    penalty = options.repeat_penalty
    penalty = params.repetition_penalty if penalty is None else penalty
    seed = None if params.seed == RANDOM_SEED else params.seed
    if options.repeat_last_n == 0:
        penalty = SamplingParams().repetition_penalty
    return msgspec.structs.replace(params, repetition_penalty=penalty, seed=seed)


def _stops(body: OllamaBody) -> tuple[str, ...]:
    """Returns the stop strings. Raises `BadRequest`."""
    stop = None if body.options is None else body.options.stop
    return stop_strings(stop, "options.stop")


def _limit(body: OllamaBody) -> int | None:
    """Returns the most tokens of the response; None if there is no limit."""
    limit = None if body.options is None else body.options.num_predict
    return token_limit(limit) if limit is not None and limit > 0 else None


def _constraint(value: object) -> Constraint | None:
    """Returns the constraint of the field `format`; None without one. Raises `BadRequest`."""
    if value in (None, ""):
        return None
    if value == "json":
        return json_object("format")
    if not isinstance(value, Mapping):
        raise BadRequest('format must be "json" or a JSON schema.', param="format")
    return json_schema(value, "format")


def _logprobs(body: OllamaBody) -> int | None:
    """Returns `TextRequest.logprobs`. Raises `BadRequest`."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise BadRequest("top_logprobs is only allowed with logprobs.", param="top_logprobs")
    return None
