"""Anthropic's tools that the client runs and that a body declares by type only. Their schemas are
known, so the model sees them as functions.

Source of the fields: Anthropic's documentation of each tool, by its dated type.
"""

from collections.abc import Callable, Mapping
from typing import Any

from node.dialects.fields.field_table import unsupported
from node.protocol.chain.tools import client_run
from node.request import Tool

_Schema = dict[str, Any]

_LINE = {
    "type": "integer",
    "description": "Of insert: after which line. Lines count from 1; 0 is before the first.",
}
_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "First and last line to view, from 1; -1 as the last is the end of the file.",
}
_POINT = {
    "type": "array",
    "items": {"type": "integer"},
    "minItems": 2,
    "maxItems": 2,
    "description": "x and y in pixels, from the upper left corner.",
}
_FIRST_WITHOUT_UNDO = "20250429"
"""Date of the first text editor without `undo_edit`; its `insert` has a field for the text."""
_FIRST_ACTIONS: tuple[str, ...] = (
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "screenshot",
    "cursor_position",
)
_LATER_ACTIONS = (
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "hold_key",
    "wait",
    "triple_click",
)
_FIRST_WITH_LATER_ACTIONS, _FIRST_WITH_ZOOM = "20250124", "20251124"


def is_client_run(fields: Mapping[str, Any]) -> bool:
    """True if the tool is one of these."""
    return client_run(fields.get("type")) is not None


def client_tool(name: str, fields: Mapping[str, Any], path: str) -> Tool:
    """Returns the tool as a function of that name. Raises `Unsupported` if a field that the tool
    needs is missing."""
    kind = str(fields["type"])
    date = kind.rpartition("_")[2]
    about, parameters = _TOOLS[str(client_run(kind))](date, fields, path)
    function = {"name": name, "description": about, "parameters": parameters}
    return Tool(function, f"{path}.type")


_Made = tuple[str, _Schema]
"""The tool's description, and the schema of its arguments."""


def _text(about: str) -> _Schema:
    return {"type": "string", "description": about}


def _command(*names: str) -> _Schema:
    return {"type": "string", "enum": list(names), "description": "What to do."}


def _object(properties: _Schema, *required: str) -> _Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _bash(_date: str, _fields: Mapping[str, Any], _path: str) -> _Made:
    properties = {
        "command": _text("The command to run; not needed with `restart`."),
        "restart": {"type": "boolean", "description": "true starts the shell anew."},
    }
    return "Runs commands in a bash shell that keeps its state between calls.", _object(properties)


def _text_editor(date: str, fields: Mapping[str, Any], _path: str) -> _Made:
    commands = ["view", "create", "str_replace", "insert"]
    inserted, path = "insert_text", _text("Path of the file; for view also of a folder.")
    if date < _FIRST_WITHOUT_UNDO:
        commands.append("undo_edit")
        inserted = "new_str"
    properties = {
        "command": _command(*commands),
        "path": path,
        "view_range": _RANGE,
        "file_text": _text("Of create: the whole text of the new file."),
        "old_str": _text("Of str_replace: the text to replace, exactly as it is, once there."),
        "new_str": _text("Of str_replace: the text in its place."),
        "insert_line": _LINE,
    }
    if inserted == "new_str":
        properties[inserted] = _text("Of str_replace and insert: the new text.")
    else:
        properties[inserted] = _text("Of insert: the text to insert.")
    most = fields.get("max_characters")
    cut = f" A view shows at most {most} characters." if isinstance(most, int) else ""
    return f"Views, creates and edits text files.{cut}", _object(properties, "command", "path")


def _memory(_date: str, _fields: Mapping[str, Any], _path: str) -> _Made:
    properties = {
        "command": _command("view", "create", "str_replace", "insert", "delete", "rename"),
        "path": _text("Path below /memories; not of rename."),
        "view_range": _RANGE,
        "file_text": _text("Of create: the whole text of the file."),
        "old_str": _text("Of str_replace: the text to replace, exactly as it is, once there."),
        "new_str": _text("Of str_replace: the text in its place."),
        "insert_line": _LINE,
        "insert_text": _text("Of insert: the text to insert."),
        "old_path": _text("Of rename: the path as it is."),
        "new_path": _text("Of rename: the path as it is to be."),
    }
    about = (
        "Keeps notes in files below /memories, which last from one conversation to the next. Look "
        "there before a task, and write down what a later one needs."
    )
    return about, _object(properties, "command")


def _computer(date: str, fields: Mapping[str, Any], path: str) -> _Made:
    actions = _FIRST_ACTIONS
    if date >= _FIRST_WITH_LATER_ACTIONS:
        actions += _LATER_ACTIONS
    properties: _Schema = {
        "action": {"type": "string", "enum": list(actions), "description": "What to do."},
        "coordinate": _POINT,
        "text": _text("Of type: the text; of key and hold_key: the keys, as `ctrl+s`."),
    }
    if date >= _FIRST_WITH_LATER_ACTIONS:
        ways = ["up", "down", "left", "right"]
        properties |= {
            "start_coordinate": {**_POINT, "description": "Of left_click_drag: where it begins."},
            "scroll_direction": {"type": "string", "enum": ways, "description": "Of scroll."},
            "scroll_amount": {"type": "integer", "description": "Of scroll: how many clicks."},
            "duration": {"type": "number", "description": "Of hold_key and wait: seconds."},
        }
    if date >= _FIRST_WITH_ZOOM and fields.get("enable_zoom"):
        properties["action"]["enum"].append("zoom")
        region = {**_POINT, "minItems": 4, "maxItems": 4}
        properties["region"] = {**region, "description": "Of zoom: x0, y0, x1 and y1 in pixels."}
    size = [fields.get(f"display_{side}_px") for side in ("width", "height")]
    if not all(isinstance(side, int) for side in size):
        raise unsupported("a computer without the size of its display", f"{path}.display_width_px")
    about = f"Mouse and keyboard of a computer whose display has {size[0]} x {size[1]} pixels."
    return about, _object(properties, "action")


_TOOLS: Mapping[str, Callable[[str, Mapping[str, Any], str], _Made]] = {
    "bash": _bash,
    "text_editor": _text_editor,
    "memory": _memory,
    "computer": _computer,
}
