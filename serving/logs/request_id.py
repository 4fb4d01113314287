"""The ids of the request that the running task serves, and of its trace, for the lines it logs."""

import asyncio
from contextvars import ContextVar
from weakref import ref

_Task = asyncio.Task[object]
_Ids = tuple[str, str]
_NONE: _Ids = ("", "")
_NO_TASK: tuple[_Ids, ref[_Task] | None] = (_NONE, None)
_REQUEST: ContextVar[tuple[_Ids, ref[_Task] | None]] = ContextVar("request", default=_NO_TASK)


def set_request_id(request_id: str, trace_id: str = "") -> None:
    """Names both in all lines that this task logs from now on, and the threads that work for it.
    Tasks that it starts have lines of their own: an engine, say, outlives the request that needed
    it first."""
    task = asyncio.current_task()
    assert task is not None, "a request is served by a task"
    _REQUEST.set(((request_id, trace_id), ref(task)))


def current_ids() -> tuple[str, str]:
    """The ids of the request and of its trace; empty outside a request, and without a trace."""
    ids, owner = _REQUEST.get()
    if owner is None:
        return ids
    try:
        return ids if asyncio.current_task() is owner() else _NONE
    except RuntimeError:  # a thread, which has no event loop
        return ids
