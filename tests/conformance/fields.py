"""Every field of the published requests is applied, refused or ignored, and one of these only."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from node.dialects.anthropic.fields import MESSAGES
from node.dialects.chat.body import CHAT
from node.dialects.completions.completions import COMPLETIONS
from node.dialects.fields.field_table import FieldTable
from node.dialects.responses.fields import RESPONSES
from tests.conformance.result import Result
from tests.conformance.schemas import OPENAI_SCHEMAS, SDK_SCHEMAS

REQUESTS: tuple[tuple[str, str, FieldTable[Any]], ...] = (
    (OPENAI_SCHEMAS, "CreateChatCompletionRequest", CHAT),
    (OPENAI_SCHEMAS, "CreateCompletionRequest", COMPLETIONS),
    (OPENAI_SCHEMAS, "CreateResponse", RESPONSES),
    (SDK_SCHEMAS, "anthropic.MessageCreateParams", MESSAGES),
)


def check_fields(corpus: Path) -> Result:
    """Each request schema that the corpus has."""
    folder = corpus / "api_schemas"
    result = Result()
    for file, name, table in REQUESTS:
        path = folder / file
        if not path.exists():
            result.notes.append(f"{name}: skipped, there is no {path}")
            continue
        document = json.loads(path.read_text())
        schema = document.get(name) or document["components"]["schemas"][name]
        for field in sorted(set(properties(schema, document | schema))):
            result.total += 1
            homes = [home for home, names in homes_of(table) if field in names]
            if len(homes) == 1:
                result.passed += 1
            else:
                where = " and ".join(homes) or "neither applied, refused nor ignored"
                result.failing.append(f"{name}.{field}: {where}")
    if not result.total:
        return Result(skipped=f"there are no schemas in {folder}")
    return result


def homes_of(table: FieldTable[Any]) -> Iterator[tuple[str, set[str]]]:
    """(what becomes of them, fields)."""
    model = table.body.model_fields
    yield "applied", {each.alias or name for name, each in model.items()}
    yield "refused", set(table.refused)
    yield "ignored", set(table.ignored)


def properties(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    """The names of an object's fields, of all its forms."""
    reference = schema.get("$ref")
    if reference is not None:
        target: Any = document
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]
        yield from properties(target, document)
    yield from schema.get("properties", {})
    for key in ("allOf", "anyOf", "oneOf"):
        for form in schema.get(key, ()):
            yield from properties(form, document)
