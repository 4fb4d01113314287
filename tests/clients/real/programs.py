"""The clients: how each is set up, as documented, and how it spells what a model does.

A client has an environment and a home of its own; telemetry and updates are off by its settings.
"""

import base64
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from router.commands.connect.clients import KEY_VARIABLE
from tests.clients.real.namespace import ROOT

LARGE, SMALL = "large", "small"
"""The models: one for the session, one for what clients do in the background."""
_PAGE = ROOT / "docs" / "guides" / "agents.md"
_DOCS_URL = "http://127.0.0.1:8800"
_DOCS_CONTEXT = "32768"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client runs, and which server it uses."""

    home: Path
    work: Path
    commands: Path
    url: str
    key: str
    configured_tokens: int
    """The context length that the client is configured with."""

    def filled(self, snippet: str) -> str:
        """A snippet of the documentation for this fleet."""
        here = snippet.replace(_DOCS_URL, self.url).replace(
            _DOCS_CONTEXT, str(self.configured_tokens)
        )
        return re.sub(r"\bKEY\b", self.key, re.sub(r"\bMODEL\b", LARGE, here))


def documented(section: str, language: str) -> str:
    """The first snippet of that language in a section of the documentation."""
    page = _PAGE.read_text()
    text = page[page.index(f"\n## {section}\n") :]
    found = re.search(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/guides/agents.md has no {language} in its section {section}"
    return found[1]


def call(name: str, **arguments: str) -> str:
    """A call of a tool, as the model writes it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


class Client(Protocol):
    name: str

    def prepare(self, place: Place) -> None:
        """Writes the client's settings."""

    def environment(self, place: Place) -> Mapping[str, str]:
        """Besides HOME and PATH."""

    def command(self, place: Place, prompt: str, *, goes_on: bool) -> list[str]:
        """Runs one prompt, in a new session or in the last one."""

    def write(self, path: str, text: str) -> str: ...

    def read(self, path: str) -> str: ...

    def edit(self, path: str, old: str, new: str) -> str: ...

    def look_at(self, path: str) -> str:
        """Shows the model a picture."""


class ClaudeCode:
    name = "claude"

    def prepare(self, place: Place) -> None:
        """All is set in its environment."""

    def environment(self, place: Place) -> Mapping[str, str]:
        lines = place.filled(documented("Claude Code", "")).splitlines()
        exported = [line.removeprefix("export ").split("=", 1) for line in lines if "=" in line]
        return {
            **{name: value for name, value in exported},
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": SMALL,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        }

    def command(self, place: Place, prompt: str, *, goes_on: bool) -> list[str]:
        more = ["--continue"] if goes_on else []
        tools = ["--allowedTools", "Write,Read,Edit"]
        return [str(place.commands / "claude"), "-p", prompt, *tools, *more]

    def conversation(self, place: Place) -> list[str]:
        """Takes a user's messages as lines on standard input (`user_line`), as if typed."""
        lines = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        return [str(place.commands / "claude"), "-p", *lines]

    def user_line(self, text: str, png: bytes = b"") -> str:
        """A line, with a picture that was pasted before the text."""
        data = base64.b64encode(png).decode()
        source = {"type": "base64", "media_type": "image/png", "data": data}
        content = [{"type": "image", "source": source}] if png else []
        content.append({"type": "text", "text": text})
        message = {"role": "user", "content": content}
        return json.dumps({"type": "user", "message": message}) + "\n"

    def write(self, path: str, text: str) -> str:
        return call("Write", file_path=path, content=text)

    def read(self, path: str) -> str:
        return call("Read", file_path=path)

    def edit(self, path: str, old: str, new: str) -> str:
        return call("Edit", file_path=path, old_string=old, new_string=new)

    def look_at(self, path: str) -> str:
        return self.read(path)


class Codex:
    name = "codex"

    def prepare(self, place: Place) -> None:
        folder = place.home / ".codex"
        folder.mkdir(exist_ok=True)
        documented_toml = place.filled(documented("Codex", "toml"))
        quiet = "check_for_update_on_startup = false\n"
        (folder / "config.toml").write_text(
            f"{quiet}{documented_toml}\n[analytics]\nenabled = false\n"
        )

    def environment(self, place: Place) -> Mapping[str, str]:
        return {KEY_VARIABLE: place.key}

    def command(self, place: Place, prompt: str, *, goes_on: bool) -> list[str]:
        where = ["resume", "--last"] if goes_on else ["--sandbox", "danger-full-access"]
        codex = str(place.commands / "codex")
        return [codex, "exec", *where, "--skip-git-repo-check", prompt]

    def write(self, path: str, text: str) -> str:
        return self._shell(f"printf %s '{text}' > {path}")

    def read(self, path: str) -> str:
        return self._shell(f"cat {path}")

    def edit(self, path: str, old: str, new: str) -> str:
        return self._shell(f"sed -i 's/{old}/{new}/' {path}")

    def look_at(self, path: str) -> str:
        return call("view_image", path=path)

    def _shell(self, command: str) -> str:
        return call("exec_command", cmd=command)


class OpenCode:
    name = "opencode"

    def prepare(self, place: Place) -> None:
        config: dict[str, Any] = json.loads(place.filled(documented("OpenCode", "json")))
        (provider,) = config["provider"]
        config["provider"][provider]["models"][SMALL] = {"name": SMALL}
        quiet = {"autoupdate": False, "share": "disabled", "permission": "allow"}
        folder = place.home / ".config" / "opencode"
        folder.mkdir(parents=True, exist_ok=True)
        settings = {**config, **quiet, "small_model": f"{provider}/{SMALL}"}
        (folder / "opencode.json").write_text(json.dumps(settings))

    def environment(self, place: Place) -> Mapping[str, str]:
        off = ("AUTOUPDATE", "LSP_DOWNLOAD", "MODELS_FETCH", "SHARE")
        return {KEY_VARIABLE: place.key, **{f"OPENCODE_DISABLE_{name}": "1" for name in off}}

    def command(self, place: Place, prompt: str, *, goes_on: bool) -> list[str]:
        more = ["--continue"] if goes_on else []
        return [str(place.commands / "opencode"), "run", *more, prompt]

    def write(self, path: str, text: str) -> str:
        return call("write", filePath=path, content=text)

    def read(self, path: str) -> str:
        return call("read", filePath=path)

    def edit(self, path: str, old: str, new: str) -> str:
        return call("edit", filePath=path, oldString=old, newString=new)

    def look_at(self, path: str) -> str:
        return self.read(path)


CLIENTS: Mapping[str, Client] = {each.name: each for each in (ClaudeCode(), Codex(), OpenCode())}


def clean_environment(client: Client, place: Place) -> dict[str, str]:
    """Nothing of this process's own but what programs cannot do without."""
    own = {"HOME": str(place.home), "LANG": "C.UTF-8", "NO_COLOR": "1", "TERM": "dumb"}
    return {**own, "PATH": os.environ["PATH"], **client.environment(place)}
