"""Where a product sends the spans of its requests."""

from __future__ import annotations

from typing import Annotated

from serving.server_url import read_url
from serving.setting import BadSetting, Kind, Setting

EXAMPLE = "http://127.0.0.1:4318"


def read_endpoint(key: str, text: str) -> str:
    try:
        return read_url(text, EXAMPLE)
    except BadSetting as error:
        raise BadSetting(f"{key}: {error}") from None


OtelEndpoint = Annotated[
    str | None,
    Setting(
        Kind(read_endpoint, "URL"),
        "Send a span of each request to this OpenTelemetry collector, by OTLP over HTTP.",
        metavar="URL",
        example=EXAMPLE,
    ),
]
