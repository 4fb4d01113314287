"""A process of a command's own, which never outlives it."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def own_process(
    command: Sequence[str], *, stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """The process, whose standard output is a pipe; `stderr` is as for `Popen`. It is waited for at
    the end of the block, and killed where that ends with an exception. A Ctrl-C in the terminal is
    the command's alone to handle."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            process.wait()
            raise
