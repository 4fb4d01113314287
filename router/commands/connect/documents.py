"""Settings files of clients as text, changed without losing what else is in them."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tomlkit
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq
from ruamel.yaml.error import YAMLError
from tomlkit.exceptions import TOMLKitError

Form = Literal["env", "json", "toml", "yaml"]
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_FLAT_SEQUENCE = re.compile(r"^- ", re.MULTILINE)
_VARIABLE = re.compile(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=(.*)")
_WIDE = 1_000_000


class NotReadable(Exception):
    """A file's text does not have its format; the message says where."""


def merged(form: Form, text: str, values: Any, identity: str = "", *, replace: bool = True) -> str:
    """Returns the text with the values, and unchanged if it has them already.

    Comments and order stay, in JSON the indentation. With `replace` False only missing values are
    added. Raises `NotReadable`.
    """
    if not values:
        return text
    if form == "env":
        return _merged_variables(text, values)
    codec = _CODECS[form](text)
    document = codec.read(text)
    if document is None:
        document = codec.new([] if isinstance(values, list) else {})
    if type(values) is list and not isinstance(document, list):
        raise NotReadable("it is no list")
    if isinstance(values, Mapping) and not isinstance(document, Mapping):
        raise NotReadable("it is no table of names and values")
    changed = _Merge(codec, identity, replace).into(document, values)
    return codec.write(document) if changed else text


def find(form: Form, text: str, values: Any, wanted: str, identity: str = "") -> str | None:
    """Returns the value in the text that has the place of `wanted` in `values`. Raises
    `NotReadable`."""
    if form == "env":
        name = next((name for name, value in values.items() if value == wanted), "")
        return dict(_variables(text)).get(name)
    found = _CODECS[form](text).read(text)
    for step in next(_paths(values, wanted, identity), ()):
        found = _child(found, step, identity)
    return found if isinstance(found, str) else None


def _paths(values: Any, wanted: str, identity: str) -> Iterator[tuple[str, ...]]:
    """Yields the way to each value that is `wanted`: names, and identities of elements."""
    if values == wanted:
        yield ()
    elif isinstance(values, Mapping):
        for name, value in values.items():
            yield from ((name, *path) for path in _paths(value, wanted, identity))
    elif isinstance(values, list):
        for each in values:
            if isinstance(each, Mapping):
                yield from ((each[identity], *path) for path in _paths(each, wanted, identity))


def _child(found: Any, step: str, identity: str) -> Any:
    if isinstance(found, Mapping):
        return found.get(step)
    if isinstance(found, list):
        return next((each for each in found if _is(each, identity, step)), None)
    return None


def _is(element: Any, identity: str, name: Any) -> bool:
    return isinstance(element, Mapping) and bool(element.get(identity) == name)


@dataclass(frozen=True, slots=True)
class _Codec:
    """One format: text to a document and back, and values of the document's own kind."""

    read: Callable[[str], Any]
    """Returns None for a text without values."""
    write: Callable[[Any], str]
    new: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Merge:
    codec: _Codec
    identity: str
    replace: bool

    def into(self, document: Any, values: Any) -> bool:
        """Puts the values into the document, and returns True if that changed it."""
        if isinstance(values, Mapping):
            return any([self._set(document, name, value) for name, value in values.items()])
        return any([self._set_element(document, each) for each in values])

    def _set(self, document: Any, name: str, value: Any) -> bool:
        there = document.get(name)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            return self.into(there, value)
        if _is_keyed(value) and isinstance(there, list):
            return self.into(there, value)
        if there == value or (there is not None and not self.replace):
            return False
        document[name] = self.codec.new(value)
        return True

    def _set_element(self, document: Any, value: Mapping[str, Any]) -> bool:
        wanted = value[self.identity]
        for each in document:
            if _is(each, self.identity, wanted):
                return self.into(each, value)
        document.append(self.codec.new(value))
        return True


def _is_keyed(value: Any) -> bool:
    """True for a list whose elements are told apart by their identity."""
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in value)


def _json(text: str) -> _Codec:
    found = _INDENT.search(text)
    indent = found[1] if found else "  "

    def write(document: Any) -> str:
        return json.dumps(document, indent=indent, ensure_ascii=False) + "\n"

    return _Codec(_read_json, write, lambda value: value)


def _read_json(text: str) -> Any:
    if not text.strip():
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotReadable(f"it is no JSON without comments: {error}") from error


def _toml(_text: str) -> _Codec:
    def read(text: str) -> Any:
        try:
            return tomlkit.parse(text)
        except (TOMLKitError, ValueError) as error:
            raise NotReadable(f"it is no TOML: {error}") from error

    return _Codec(read, tomlkit.dumps, tomlkit.item)


def _yaml(text: str) -> _Codec:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = _WIDE
    # A list under a name is written as the file has it, with or without an indentation.
    if text.strip() and _FLAT_SEQUENCE.search(text):
        yaml.indent(mapping=2, sequence=2, offset=0)
    else:
        yaml.indent(mapping=2, sequence=4, offset=2)

    def read(source: str) -> Any:
        try:
            return yaml.load(source)
        except (YAMLError, ValueError, RecursionError) as error:
            raise NotReadable(f"it is no YAML: {str(error).splitlines()[0]}") from error

    def write(document: Any) -> str:
        if isinstance(document, list):
            yaml.indent(mapping=2, sequence=2, offset=0)
        out = io.StringIO()
        yaml.dump(document, out)
        return out.getvalue()

    return _Codec(read, write, _yaml_value)


def _yaml_value(value: Any) -> Any:
    """A list of words is written on one line."""
    if isinstance(value, Mapping):
        return {name: _yaml_value(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        made = CommentedSeq(_yaml_value(each) for each in value)
        if value and not _is_keyed(value):
            made.fa.set_flow_style()
        return made
    return value


_CODECS: Mapping[str, Callable[[str], _Codec]] = {"json": _json, "toml": _toml, "yaml": _yaml}


def _variables(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if found := _VARIABLE.fullmatch(line):
            yield found[1], found[2].strip().strip("'\"")


def _merged_variables(text: str, values: Mapping[str, str]) -> str:
    missing = dict(values)
    lines = []
    for line in text.splitlines():
        found = _VARIABLE.fullmatch(line)
        if found and found[1] in missing:
            value = missing.pop(found[1])
            same = found[2].strip().strip("'\"") == value
            lines.append(line if same else f"{found[1]}={value}")
        else:
            lines.append(line)
    lines += [f"{name}={value}" for name, value in missing.items()]
    return "\n".join(lines) + "\n"
