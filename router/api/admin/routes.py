"""Everything under `/admin`, as one table of routes."""

from collections.abc import Callable

from fastapi import APIRouter

from router.api.admin import (
    adding,
    aliases,
    backup,
    cache,
    disk,
    explain,
    keys,
    lifecycle,
    models,
    nodes,
    reports,
    settings,
    status,
    teams,
)
from router.api.admin.gate import gated_route
from router.api.admin.openapi import add_description
from router.core import Core


def admin_routes(core_of: Callable[[], Core]) -> APIRouter:
    """Builds the admin API; `core_of` returns the core once the app has started."""
    router = APIRouter(prefix="/admin", route_class=gated_route(core_of))
    add = router.add_api_route
    # Names in paths may be empty, or contain slashes, as the hub's model names do.
    _add_nodes(router)
    add("/models", models.list_models, methods=["GET"])
    add("/models/load", models.load_model, methods=["POST"])
    add("/models/unload", models.unload_model, methods=["POST"])
    add("/models/pull", disk.pull_model, methods=["POST"], status_code=202)
    add("/models/cancel-pull", disk.cancel_pull, methods=["POST"])
    add("/models/remove", disk.remove_model, methods=["POST"])
    add("/cache/clear", cache.clear_cache, methods=["POST"])
    add("/aliases", aliases.list_aliases, methods=["GET"])
    add("/aliases/{name:path}", aliases.get_alias, methods=["GET"])
    add("/aliases/{name:path}", aliases.set_alias, methods=["PUT"])
    add("/aliases/{name:path}", aliases.remove_alias, methods=["DELETE"])
    add("/explain", explain.explain, methods=["POST"])
    add("/explain/{request_id:path}", explain.explain_request, methods=["GET"])
    _add_keys(router)
    _add_lifecycle(router)
    _add_registry(router)
    add_description(router)
    return router


def _add_keys(router: APIRouter) -> None:
    add = router.add_api_route
    add("/keys", keys.list_keys, methods=["GET"])
    add("/keys", keys.create_key, methods=["POST"], status_code=201)
    add("/keys/rotate", keys.rotate_key, methods=["POST"])
    add("/keys/{id_or_name:path}", keys.show_key, methods=["GET"])
    add("/keys/{id_or_name:path}", keys.change_key, methods=["PATCH"])
    add("/keys/{id_or_name:path}", keys.revoke_key, methods=["DELETE"])
    add("/teams", teams.list_teams, methods=["GET"])
    add("/teams", teams.create_team, methods=["POST"], status_code=201)
    add("/teams/{name:path}", teams.change_team, methods=["PATCH"])
    add("/teams/{name:path}", teams.delete_team, methods=["DELETE"])


def _add_lifecycle(router: APIRouter) -> None:
    add = router.add_api_route
    add("/policies", lifecycle.list_policies, methods=["GET"])
    add("/policies", lifecycle.change_policy, methods=["PATCH"])
    add("/schedules", lifecycle.list_schedules, methods=["GET"])
    add("/schedules", lifecycle.add_schedule, methods=["POST"], status_code=201)
    add("/schedules/{schedule_id:path}", lifecycle.remove_schedule, methods=["DELETE"])


def _add_registry(router: APIRouter) -> None:
    add = router.add_api_route
    add("/check", status.check_itself, methods=["GET"])
    add("/status", status.show_status, methods=["GET"])
    add("/registry", reports.show_registry, methods=["GET"])
    add("/reload", settings.reload, methods=["POST"])
    add("/backup", backup.take_backup, methods=["POST"])
    add("/usage", reports.show_usage, methods=["GET"])
    add("/audit", reports.show_audit, methods=["GET"])
    add("/logs", reports.show_logs, methods=["GET"])


def _add_nodes(router: APIRouter) -> None:
    add = router.add_api_route
    add("/nodes", nodes.list_nodes, methods=["GET"])
    add("/nodes", adding.add_node, methods=["POST"], status_code=201)
    add("/nodes/found", adding.list_found, methods=["GET"])
    add("/nodes/check", nodes.check_nodes, methods=["POST"])
    add("/nodes/state", nodes.set_state, methods=["POST"])
    add("/nodes/rotate", adding.rotate_node, methods=["POST"])
    add("/nodes/accept", nodes.accept_models, methods=["POST"])
    add("/nodes/wake", nodes.wake_node, methods=["POST"])
    add("/nodes/waking", nodes.set_waking, methods=["POST"])
    add("/nodes/cut", nodes.cut_requests, methods=["POST"])
    add("/nodes/{name:path}", nodes.remove_node, methods=["DELETE"])
