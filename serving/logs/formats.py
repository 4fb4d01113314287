"""The forms of a log's records. Neither lets a message forge a line of its own."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from serving.logs.options import Form
from serving.logs.request_id import current_ids
from serving.terminal.output import shown, shown_json, shown_lines


class TextFormatter(logging.Formatter):
    """`2026-11-30 15:24:41,123 INFO message (request 5f3a…)`, as one line; only a traceback has
    more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        request_id, _trace_id = _ids(record)
        about = f" (request {request_id})" if request_id else ""
        head = f"{self.formatTime(record)} {record.levelname}"
        return shown(f"{head} {record.message}{about}")

    def formatException(self, ei: object) -> str:
        return shown_lines(super().formatException(ei))  # type: ignore[arg-type]


class JsonFormatter(logging.Formatter):
    """One object a record: `time` (ISO 8601, UTC), `level`, `logger`, `message`, and, where there
    is one, `request_id`, `trace_id`, `request` (the parts of a line about a request) and
    `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": shown(record.getMessage()),
        }
        for name, value in zip(("request_id", "trace_id"), _ids(record), strict=True):
            if value:
                told[name] = value
        if request := getattr(record, "request", None):
            told["request"] = request
        if record.exc_info:
            told["exception"] = shown_lines(self.formatException(record.exc_info))
        return shown_json(json.dumps(told, ensure_ascii=False))


def _ids(record: logging.LogRecord) -> tuple[str, str]:
    """The ids of the request that the record is about, and of its trace: the record's own, or else
    those of the task."""
    own: str = getattr(record, "request_id", "")
    return (own, getattr(record, "trace_id", "")) if own else current_ids()


def formatter_of(form: Form) -> logging.Formatter:
    return JsonFormatter() if form == "json" else TextFormatter()
