"""A child process that never outlives its command."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def own_process(
    command: Sequence[str], *, stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Runs the process with a pipe as standard output; `stderr` is as for `Popen`. At the end of
    the block it is waited for, and killed first if the block ends with an exception. A Ctrl-C in
    the terminal reaches the command only."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            process.wait()
            raise
