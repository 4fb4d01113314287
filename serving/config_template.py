"""A settings file with every setting, its meaning and its default, for people to change."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from serving.config_file import NOT_IN_FILE, key_of
from serving.setting import Environment, Sections, Setting, help_of, settings_of

_WIDTH = 88


def template(product: Environment, sections: Sections) -> str:
    """The text of a file in which every setting is commented out."""
    return "\n".join(_lines(product, sections)) + "\n"


def _lines(product: Environment, sections: Sections) -> Iterator[str]:
    command = product.command
    yield f"# Settings of `{command} serve`. Remove the # before a line to change its value; the"
    yield "# values below are the defaults, or examples where the default is no fixed value."
    yield "#"
    yield "# An option of the command line wins over an environment variable, and that over this"
    yield f"# file. `{command} config check` finds mistakes, `{command} config show` shows what"
    yield "# applies, and where it is from."
    declared = settings_of(product.settings)
    defaults = {field.name: field.default for field in fields(product.settings)}
    for title, names in sections:
        yield f"\n\n# --- {title} ---"
        for name in names:
            if name not in NOT_IN_FILE:
                yield from _setting(product.settings, name, declared[name], defaults)


def _setting(
    settings: type[Any], name: str, setting: Setting, defaults: Mapping[str, Any]
) -> Iterator[str]:
    text = help_of(settings, name)
    live = " Applied at a reload." if setting.is_live else ""
    yield ""
    yield from textwrap.wrap(f"{text}{live}", _WIDTH, initial_indent="# ", subsequent_indent="# ")
    yield f"# {key_of(name, setting)} = {_shown(setting, defaults[name])}"


def _shown(setting: Setting, default: Any) -> str:
    """The default, or an example, as TOML."""
    kind = setting.kind
    if isinstance(default, bool):
        return "true" if default else "false"
    example = setting.example or kind.example
    if kind.read_all is not None:
        return f"[{json.dumps(example or setting.metavar or kind.metavar, ensure_ascii=False)}]"
    text = example if default in (None, "") else kind.show(default)
    return text if text.isdecimal() else json.dumps(text, ensure_ascii=False)
