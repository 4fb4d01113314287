"""The id of the request that the running task serves, for the lines it logs."""

import asyncio
from contextvars import ContextVar
from weakref import ref

_Task = asyncio.Task[object]
_NO_TASK: tuple[str, ref[_Task] | None] = ("", None)
_REQUEST: ContextVar[tuple[str, ref[_Task] | None]] = ContextVar("request", default=_NO_TASK)


def set_request_id(request_id: str) -> None:
    """Names it in all lines that this task logs from now on, and the threads that work for it.
    Tasks that it starts have lines of their own: an engine, say, outlives the request that needed
    it first."""
    task = asyncio.current_task()
    assert task is not None, "a request is served by a task"
    _REQUEST.set((request_id, ref(task)))


def current_request_id() -> str:
    """Empty outside a request."""
    request_id, owner = _REQUEST.get()
    if owner is None:
        return request_id
    try:
        return request_id if asyncio.current_task() is owner() else ""
    except RuntimeError:  # a thread, which has no event loop
        return request_id
