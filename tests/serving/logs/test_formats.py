"""The forms of a log."""

import asyncio
import io
import json
import logging
from datetime import datetime

import pytest

from serving.logs.formats import formatter_of
from serving.logs.options import Form
from serving.logs.request_id import set_request_id

FORGED = "x\r\n12:00 WARNING forged \x1b[31m"


def logged(form: Form) -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter_of(form))
    logger = logging.Logger("router.test")
    logger.addHandler(handler)
    return logger, stream


def test_a_record_in_text_is_one_line_with_time_and_level() -> None:
    logger, stream = logged("text")
    logger.warning("node %s is lost", FORGED)
    line = stream.getvalue().removesuffix("\n")
    day, clock, told = line.split(" ", 2)
    assert datetime.fromisoformat(f"{day} {clock.replace(',', '.')}")
    assert told == r"WARNING node x\r\n12:00 WARNING forged \x1b[31m is lost"


def test_a_traceback_in_text_moves_no_cursor() -> None:
    logger, stream = logged("text")
    try:
        raise ValueError("from afar \x1b[2J")
    except ValueError:
        logger.exception("failed")
    first, *trace = stream.getvalue().splitlines()
    assert first.endswith("ERROR failed") and trace[0].startswith("Traceback")
    assert "\x1b" not in stream.getvalue() and r"\x1b[2J" in trace[-1]


def test_a_record_in_json_is_one_object() -> None:
    logger, stream = logged("json")
    try:
        raise ValueError("from afar \x1b[2J")
    except ValueError:
        logger.exception("node %s", FORGED)
    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert datetime.fromisoformat(told.pop("time")).utcoffset() is not None
    assert told.pop("exception").startswith("Traceback")
    assert told == {
        "level": "error",
        "logger": "router.test",
        "message": r"node x\r\n12:00 WARNING forged \x1b[31m",
    }


@pytest.mark.parametrize("form", ["text", "json"])
async def test_the_lines_of_a_task_name_its_request_and_no_other(form: Form) -> None:
    logger, stream = logged(form)

    async def started() -> None:
        logger.info("of none")

    async def work(request_id: str) -> None:
        set_request_id(request_id, f"trace of {request_id}")
        await asyncio.to_thread(logger.info, "of %s", request_id)
        # An engine that a request has started outlives it.
        await asyncio.create_task(started())

    await asyncio.create_task(work("one"))
    await asyncio.create_task(work("two"))
    lines = stream.getvalue().splitlines()
    if form == "json":
        traces = [json.loads(line).get("trace_id") for line in lines]
        assert traces == ["trace of one", None, "trace of two", None]
        assert [json.loads(line).get("request_id") for line in lines] == ["one", None, "two", None]
    else:
        ends = ["of one (request one)", "of none", "of two (request two)", "of none"]
        assert [line.partition("INFO ")[2] for line in lines] == ends
