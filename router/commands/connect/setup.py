"""Settings by which a client uses the fleet: variables, files, code."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from router.commands.connect.documents import Form, merged

Language = Literal["", "json", "python", "toml", "yaml"]
_LANGUAGES: Mapping[Form, Language] = {"env": "", "json": "json", "toml": "toml", "yaml": "yaml"}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server as one client reaches it."""

    url: str
    """Without `/v1`."""
    key: str
    model: str
    """Empty if the client's own names of models are aliases here."""
    context_tokens: int | None
    """Context length of the model; None if it is not known."""

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def output_tokens(self) -> int:
        """The part of the context that a response may have."""
        return min(8192, (self.context_tokens or 32768) // 4)


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A file of a client, and what is to stand in it."""

    folder: str
    """Path of its folder, from `~` on."""
    name: str
    form: Form
    values: Any
    """Values by name, nested, or a list of such; they replace those that are there."""
    identity: str = ""
    """Field by which an element of a list is found again."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Values that are added only where there are none."""
    variable: str = ""
    """Environment variable with another path for the folder."""

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"

    @property
    def language(self) -> Language:
        return _LANGUAGES[self.form]

    def merged_into(self, text: str) -> str:
        """Returns the file's text with the values. Raises `NotReadable`."""
        with_base = merged(self.form, text, self.base, self.identity, replace=False)
        return merged(self.form, with_base, self.values, self.identity)


@dataclass(frozen=True, slots=True)
class Setup:
    """The settings of one client."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that are exported in the shell."""
    unset: tuple[str, ...] = ()
    run: str = ""
    """Command line that starts the client, or stores the settings."""
    files: tuple[SettingsFile, ...] = ()
    """Files that are shown."""
    written: tuple[SettingsFile, ...] = ()
    """Files that take the place of all of these; empty if the client has none."""
    unwritten: str = ""
    """Reason why there are none."""
    code: str = ""

    def blocks(self) -> list[Block]:
        """Returns all that is shown, in its order."""
        found = [Block(each.merged_into(""), each.language, each) for each in self.files]
        exports = [f"export {name}={shlex.quote(text)}" for name, text in self.variables.items()]
        shell = [*exports, *(f"unset {name}" for name in self.unset)]
        if self.run:
            shell.append(self.run)
        if shell:
            found.append(Block("\n".join(shell) + "\n", ""))
        if self.code:
            found.append(Block(self.code, "python"))
        return found


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of text to copy."""

    text: str
    language: Language
    file: SettingsFile | None = None
    """None for a shell or a program."""
