"""The admin API's description of itself, in OpenAPI 3.1, with an example for each body."""

from functools import cache
from typing import Any

from fastapi import APIRouter
from fastapi.openapi.utils import get_openapi

from router.api.admin.gate import CurrentAdmin
from serving.version import own_version

BODIES: dict[str, dict[str, Any]] = {
    "POST /admin/nodes": {
        "url": "studio.local",
        "code": "K3QW-M2XP-9RTE-7HBC",
        "name": "studio",
    },
    "POST /admin/nodes/state": {"node": "studio", "state": "cordoned"},
    "POST /admin/nodes/rotate": {"node": "studio"},
    "POST /admin/nodes/accept": {"node": "ollama", "models": ["llama3.2"]},
    "POST /admin/nodes/cut": {"node": "studio"},
    "POST /admin/nodes/wake": {"node": "studio"},
    "POST /admin/nodes/waking": {"node": "studio", "mac": "a0:b1:c2:d3:e4:f5", "wakes": True},
    "POST /admin/models/load": {"model": "Qwen3-4B-4bit", "node": "studio"},
    "POST /admin/models/unload": {"model": "Qwen3-4B-4bit"},
    "POST /admin/models/pull": {"model": "mlx-community/Qwen3-4B-4bit", "node": "mini"},
    "POST /admin/models/cancel-pull": {"model": "Qwen3-4B-4bit", "node": "mini"},
    "POST /admin/models/remove": {"model": "Qwen3-4B-4bit", "node": "mini"},
    "POST /admin/cache/clear": {"node": "studio", "model": "Qwen3-4B-4bit"},
    "PUT /admin/aliases/{name}": {
        "targets": [{"model": "Qwen3-4B-4bit", "defaults": {"temperature": 0.2}}],
        "selector": "warm",
        "force": True,
    },
    "POST /admin/keys": {
        "name": "ci",
        "models": ["qwen*"],
        "limits": {"tokens_per_day": 2_000_000},
        "expires_in_days": 90,
    },
    "POST /admin/keys/rotate": {"key": "ci", "grace_s": 86_400},
    "PATCH /admin/keys/{id_or_name}": {"limits": {"requests_per_minute": 60}, "models": None},
    "POST /admin/teams": {"name": "lab", "limits": {"tokens_per_minute": 50_000}},
    "PATCH /admin/teams/{name}": {"limits": {"concurrent_requests": 8}},
    "POST /admin/explain": {
        "body": {"model": "Qwen3-4B-4bit", "messages": [{"role": "user", "content": "Hello"}]}
    },
    "PATCH /admin/policies": {"model": "Qwen3-4B-4bit", "node": "studio", "pinned": True},
    "POST /admin/schedules": {
        "model": "Qwen3-4B-4bit",
        "load": "0 8 * * 1-5",
        "unload": "0 19 * * 1-5",
        "timezone": "Europe/Berlin",
    },
}
"""An example of each body, by method and path."""
_PARAMETERS = {
    "/admin/nodes/{name}": "studio",
    "/admin/aliases/{name}": "fast",
    "/admin/keys/{id_or_name}": "ci",
    "/admin/teams/{name}": "lab",
    "/admin/schedules/{schedule_id}": "5d41402abc4b2a76",
    "/admin/explain/{request_id}": "req_493ffefa15f49157-d649cea9ac-fd0f86ab-000007",
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}
_ERRORS = {
    "400": "The body or a parameter is not valid.",
    "401": "There is no valid key.",
    "403": "The key lacks the scope admin.",
    "404": "There is no such thing.",
    "409": "The name is taken, or the change is not possible now.",
}
_UNUSED = ("HTTPValidationError", "ValidationError")
"""Schemas of errors that FastAPI would send, but that the gate spells as the router's own."""


def add_description(router: APIRouter) -> None:
    """Adds `/openapi.json` to the routes, which describes all the others."""

    @cache
    def described() -> dict[str, Any]:
        return description(router)

    async def show_openapi(_admin: CurrentAdmin) -> dict[str, Any]:
        return described()

    router.add_api_route("/openapi.json", show_openapi, methods=["GET"], include_in_schema=False)


def description(router: APIRouter) -> dict[str, Any]:
    """Describes the routes, with examples and the errors that the router sends."""
    made = get_openapi(title="mlx-fleet admin API", version=own_version(), routes=router.routes)
    schemas = made["components"]["schemas"]
    for name in _UNUSED:
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    made["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    made["security"] = [{"key": []}]
    for path, verbs in made["paths"].items():
        for method, verb in verbs.items():
            _complete(verb, f"{method.upper()} {path}", path)
    return made


def _complete(verb: dict[str, Any], name: str, path: str) -> None:
    """Adds examples and errors to the description of one verb."""
    if name in BODIES:
        verb["requestBody"]["content"]["application/json"]["example"] = BODIES[name]
    for parameter in verb.get("parameters", ()):
        if parameter["in"] == "path":
            parameter["example"] = _PARAMETERS[path]
    responses = verb["responses"]
    responses.pop("422", None)
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status, text in _ERRORS.items():
        responses[status] = {"description": text, "content": content}
