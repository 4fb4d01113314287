"""The models on this machine's disk, with their names and sizes.

The store works on files alone: no model code, no network. A model is a folder with `config.json`
and safetensors. The store owns one folder; folders elsewhere are served read-only from where they
are. A model's name is data and never a path: only the store turns a name into a folder.
"""

import contextlib
import logging
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import msgspec

from node.defaults import Defaults, ModelDefaults
from node.errors import BadRequest, StartError, UnknownModel
from node.models.attention_scratch import AttentionScores, attention_scores
from node.models.kv_estimate import CONTEXT_KEYS, ImpossibleNumber, estimate_kv, first_count
from node.models.model_facts import ModelFacts, model_facts
from node.models.model_files import (
    NAME_FILE,
    PARTIAL_MARKER,
    NameFile,
    NotAModel,
    looks_like_model,
    read_json,
    weight_files,
)
from node.models.safetensors_header import text_bytes
from node.parsing.selection import Formats
from node.protocol.models import near_names
from node.protocol.names import is_name
from node.request import TextRequest
from serving.terminal.error_text import error_text

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")


class _Unfinished(NotAModel):
    """A model is being written into the folder."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model on disk, as far as its files describe it without loading it."""

    name: str
    folder: Path
    """Real path."""
    weight_bytes: int
    """Memory of the weights: all tensors but those that text does not need."""
    context_tokens: int | None
    kv_bytes_per_token: int
    """Upper estimate of the KV bytes that one token adds to a row; 0 if the config does not say."""
    kv_bytes_per_row: int = 0
    """KV bytes of a row besides: full windows and recurrent states."""
    scores: AttentionScores = AttentionScores()
    """Memory of its attention during prefill."""
    formats: Formats = Formats()
    """Formats of its outputs."""
    defaults: Defaults = Defaults()
    disk_bytes: int = 0
    """Size of all its files."""
    facts: ModelFacts = ModelFacts()

    def completed(self, request: TextRequest) -> TextRequest:
        """The request, with the settings for this model in fields that it does not set."""
        return self.defaults.of(request, reasons=self.formats.reasoning != "none")

    @property
    def capabilities(self) -> tuple[str, ...]:
        """Abilities that clients may use."""
        tools = ("tools",) if self.formats.tool_calls != "none" else ()
        reasoning = ("reasoning",) if self.formats.reasoning != "none" else ()
        return ("completion", *tools, *reasoning)


@dataclass(frozen=True, slots=True)
class BrokenFolder:
    """A folder that looks like a model and cannot be served."""

    name: str
    folder: Path
    reason: str
    """A sentence, without the folder's path."""


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a store, sorted by name."""

    models: tuple[ModelEntry, ...]
    broken: tuple[BrokenFolder, ...]


class FormatSource(Protocol):
    """Finds the formats of models' outputs. The implementation is not imported here, since
    importing all formats would slow down commands that only copy and count files."""

    def of(self, name: str, folder: Path | None) -> Formats:
        """The formats of the model of that name, in that folder."""


@dataclass(frozen=True, slots=True)
class ServedFolder:
    """A model folder outside the store, served from where it is under `name` or its own name."""

    path: Path
    name: str | None = None


def check_name(name: str) -> str:
    """Returns `name`. Raises `BadRequest` unless it is `NAME` or `OWNER/NAME` of letters, digits,
    dots, underscores and single hyphens, so that it can be a folder's name."""
    if not _NAME.fullmatch(name) or "--" in name or ".." in name:
        raise BadRequest(
            f"{name!r} cannot be a model's name: use NAME or OWNER/NAME of letters, digits, "
            "dots, underscores and single hyphens.",
            param="model",
        )
    if name.endswith(PARTIAL_MARKER):
        raise BadRequest(f"A model's name cannot end in {PARTIAL_MARKER}.", param="model")
    return name


def read_entry(
    folder: Path, name: str | None = None, formats: FormatSource | None = None
) -> ModelEntry:
    """The model in `folder`. Raises `NotAModel` with a sentence if it is no complete model."""
    try:
        entry = _read_entry(folder, name)
        if not is_name(entry.name):
            raise NotAModel(f"{folder} has an unprintable name: {entry.name!r}.")
        if formats is None:
            return entry
        return replace(entry, formats=formats.of(entry.name, entry.folder))
    except ImpossibleNumber as exc:
        raise NotAModel(f"config.json of {folder} is not a model's: {exc}.") from exc
    # Circular links, deeply nested JSON, names that no file can have: an error in one folder must
    # not hide the other models.
    except (OSError, RuntimeError, ValueError) as exc:
        raise NotAModel(f"{folder} cannot be read: {error_text(exc)}.") from exc


def folder_bytes(folder: Path) -> int:
    """Size of all readable files below the folder."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            # A download's temporary file may have got its final name meanwhile.
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(parent, name)).st_size
    return total


def delete_folder(folder: Path) -> None:
    """Deletes a model of the store, or an unfinished one. If this is interrupted, the rest counts
    neither as a model nor as a pull to resume."""
    marker = folder / PARTIAL_MARKER
    marker.write_bytes(b"")
    # The marker goes last: without it, the rest would count as a complete model.
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path != marker:
            path.unlink()
    marker.unlink()
    folder.rmdir()


def _read_entry(folder: Path, name: str | None) -> ModelEntry:
    real = folder.expanduser().resolve()
    if not real.is_dir():
        raise NotAModel(f"There is no folder {folder}.")
    if (real / PARTIAL_MARKER).exists():
        raise _Unfinished(f"{folder} is not complete: its download or import has not finished.")
    config = read_json(real / "config.json")
    text = config.get("text_config")
    text_config = text if isinstance(text, dict) else config
    kv = estimate_kv(config)
    weight_bytes = sum(text_bytes(file) for file in weight_files(real))
    return ModelEntry(
        name=name or _shown_name(folder, real),
        folder=real,
        weight_bytes=weight_bytes,
        context_tokens=first_count(CONTEXT_KEYS, text_config, config),
        kv_bytes_per_token=kv.bytes_per_token,
        kv_bytes_per_row=kv.bytes_per_row,
        scores=attention_scores(config),
        disk_bytes=folder_bytes(real),
        facts=model_facts(config, weight_bytes),
    )


class ModelStore:
    """The models of one node: those in its own folder, and those served from elsewhere."""

    def __init__(
        self,
        folder: Path,
        served: tuple[ServedFolder, ...] = (),
        formats: FormatSource | None = None,
        defaults: ModelDefaults | None = None,
    ) -> None:
        self.folder = folder
        self._served = served
        self._formats = formats
        self._defaults = defaults or ModelDefaults()
        self._reported: set[Path] = set()
        """Folders that the log has reported as broken."""

    def contents(self) -> Contents:
        """All complete models, and broken ones under other names. A served folder takes precedence
        over one of the same name. Raises `StartError` if the store's own folder cannot be read."""
        found: dict[str, ModelEntry] = {}
        broken: dict[str, BrokenFolder] = {}
        own = [entry for _, entry in self._own()]
        served = [self._read(each.path, each.name) for each in self._served]
        for entry in (*reversed(own), *served):
            match entry:
                case ModelEntry():
                    found[entry.name] = entry
                case BrokenFolder():
                    broken[entry.name] = entry
        names = sorted(broken.keys() - found.keys())
        return Contents(
            tuple(found[name] for name in sorted(found)), tuple(broken[name] for name in names)
        )

    def list(self) -> tuple[ModelEntry, ...]:
        """The complete models, sorted by name. Raises the same errors as `contents`."""
        return self.contents().models

    def find(self, name: str) -> ModelEntry | None:
        """The model of that name, or None."""
        return next((entry for entry in self.list() if entry.name == name), None)

    def near(self, name: str) -> tuple[str, ...]:
        """Up to three names that resemble `name`, the nearest first."""
        return near_names(name, (entry.name for entry in self.list()))

    def folder_for(self, name: str) -> Path:
        """Folder for a model of that name, which is not created. Raises `BadRequest` for a bad
        name."""
        return self.folder / check_name(name).replace("/", "--")

    def is_unfinished(self, name: str) -> bool:
        """True if a pull of that name has begun in the store's own folder, and not ended. Raises
        `BadRequest` for a bad name."""
        folder = self.folder_for(name)
        return (folder / PARTIAL_MARKER).exists() and not folder.is_symlink()

    def has(self, name: str) -> bool:
        """True if there is a model of that name, complete, unfinished or broken."""
        contents = self.contents()
        names = {each.name for each in contents.models} | {each.name for each in contents.broken}
        return name in names or self.is_unfinished(name)

    def remove(self, name: str) -> int:
        """Deletes a model of the store's own folder, finished or not, and returns the bytes freed.
        A link in the folder is deleted, never its target. Raises `UnknownModel`, or `BadRequest` if
        the model is served from elsewhere."""
        for path, entry in self._own():
            if entry.name != name:
                continue
            if path.is_symlink():
                path.unlink()
                return 0
            freed_bytes = folder_bytes(path)
            delete_folder(path)
            return freed_bytes
        if self.is_unfinished(name):
            unfinished = self.folder_for(name)
            freed_bytes = folder_bytes(unfinished)
            delete_folder(unfinished)
            return freed_bytes
        contents = self.contents()
        folders = {each.name: each.folder for each in contents.models}
        folders |= {each.name: each.folder for each in contents.broken}
        if (elsewhere := folders.get(name)) is not None:
            raise BadRequest(
                f"{name} is served from {elsewhere}, outside the agent's own folder; delete it "
                "there.",
                param="model",
            )
        raise UnknownModel(f"There is no model {name!r} on this node.")

    def _own(self) -> tuple[tuple[Path, ModelEntry | BrokenFolder], ...]:
        try:
            paths = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as exc:
            raise StartError(f"{self.folder} cannot be read: {exc.strerror}.") from None
        found = []
        for path in paths:
            if path.name.startswith(".") or path.name.endswith(PARTIAL_MARKER):
                continue
            entry = self._read(path)
            if entry is not None:
                found.append((path, entry))
        return tuple(found)

    def _read(self, path: Path, name: str | None = None) -> ModelEntry | BrokenFolder | None:
        """The entry in the folder; None for a folder that does not look like a model."""
        try:
            entry = read_entry(path, name, self._formats)
            return replace(entry, defaults=self._defaults.of(entry.name))
        except _Unfinished:
            return None
        except NotAModel as exc:
            if not looks_like_model(path):
                return None
            if path not in self._reported:
                self._reported.add(path)
                logger.warning("%s", exc.message)
            return _broken(path, name, exc.message)


def _broken(path: Path, name: str | None, message: str) -> BrokenFolder | None:
    """The broken entry; None if it has no printable name."""
    real = Path(os.path.realpath(path))
    name = name or _shown_name(path, real)
    if not is_name(name):
        return None
    for folder in (real, path):
        message = message.replace(f"{folder}{os.sep}", "").replace(str(folder), name)
    return BrokenFolder(name, path, message)


def _shown_name(folder: Path, real: Path) -> str:
    try:
        return check_name(msgspec.json.decode((real / NAME_FILE).read_bytes(), type=NameFile).name)
    except (OSError, msgspec.MsgspecError, BadRequest):
        return (folder.name or real.name).replace("--", "/", 1)
