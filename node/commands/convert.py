"""`node-agent import`: converts a GGUF file into a model of the store."""

import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, TextColumn

from node.commands.configuration import need_extra
from node.commands.own_process import own_process
from node.commands.own_store import open_store
from node.errors import NodeError
from node.hardware import python_command
from node.models.model_files import partial_folder
from serving.awake import kept_awake
from serving.terminal.bars import shown_bars
from serving.terminal.output import put


@dataclass(frozen=True, slots=True)
class Import:
    """The file to import, and the options."""

    source: Path
    name: str
    dtype: str | None = None
    keep_quantized: bool = False

    def command(self, folder: Path) -> list[str]:
        """The command of the importer, a separate process so that its memory is freed at its
        end."""
        command = [*python_command(), "-m", "node.engine.gguf.convert", "--name", self.name]
        if self.dtype is not None:
            command += ["--dtype", self.dtype]
        if self.keep_quantized:
            command.append("--keep-quantized")
        return [*command, "--", str(self.source), str(folder)]


_COLUMNS = (TextColumn("{task.description}", markup=False), BarColumn())


class ImportFailed(NodeError):
    """The importer ended before it was done."""


def import_model(home: Path | None, job: Import) -> None:
    """Imports a GGUF file under a name. Raises `ImportFailed` with the importer's sentence."""
    need_extra()
    folder = open_store(home, make_home=True).folder_for(job.name)
    with _partial_folder_deleted(folder), own_process(job.command(folder)) as process:
        failure = _follow(job.name, process.stdout or ())
    if failure is not None or process.returncode != 0:
        raise ImportFailed(failure)
    put(f"{job.name} is at {folder}")


def _follow(name: str, lines: Iterable[str]) -> str | None:
    """Shows the importer's progress until it ends. Returns its error as a sentence, or None."""
    failure: str | None = None
    with shown_bars(*_COLUMNS) as bars, kept_awake():
        bar = bars.add_task(name, total=1.0)
        for message in _messages(lines):
            fraction, error = message.get("fraction"), message.get("error")
            if isinstance(fraction, float):
                bars.update(bar, completed=fraction)
            if isinstance(error, str):
                failure = error
    return failure


@contextmanager
def _partial_folder_deleted(folder: Path) -> Iterator[None]:
    """Deletes the partial folder at the end, since an importer that is killed cannot."""
    try:
        yield
    finally:
        shutil.rmtree(partial_folder(folder), ignore_errors=True)


def _messages(lines: Iterable[str]) -> Iterable[dict[str, object]]:
    for line in lines:
        message = json.loads(line)
        if isinstance(message, dict):
            yield message
