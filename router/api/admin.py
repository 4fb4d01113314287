"""Everything under `/admin`, as one table of routes."""

from collections.abc import Callable

from fastapi import APIRouter

from router.api import (
    admin_aliases,
    admin_disk,
    admin_explain,
    admin_keys,
    admin_lifecycle,
    admin_models,
    admin_nodes,
    admin_reports,
)
from router.api.admin_gate import gated_route
from router.core import Core


def admin_routes(core_of: Callable[[], Core]) -> APIRouter:
    """The admin API over the core that `core_of` gives once the app has started."""
    router = APIRouter(prefix="/admin", route_class=gated_route(core_of))
    add = router.add_api_route
    # What stands in a path may hold slashes, as model names on the hub do, or be empty.
    add("/nodes", admin_nodes.list_nodes, methods=["GET"])
    add("/nodes", admin_nodes.add_node, methods=["POST"], status_code=201)
    add("/nodes/check", admin_nodes.check_nodes, methods=["POST"])
    add("/nodes/state", admin_nodes.set_state, methods=["POST"])
    add("/nodes/accept", admin_nodes.accept_models, methods=["POST"])
    add("/nodes/cut", admin_nodes.cut_requests, methods=["POST"])
    add("/nodes/{name:path}", admin_nodes.remove_node, methods=["DELETE"])
    add("/models", admin_models.list_models, methods=["GET"])
    add("/models/load", admin_models.load_model, methods=["POST"])
    add("/models/unload", admin_models.unload_model, methods=["POST"])
    add("/models/pull", admin_disk.pull_model, methods=["POST"], status_code=202)
    add("/models/cancel-pull", admin_disk.cancel_pull, methods=["POST"])
    add("/models/remove", admin_disk.remove_model, methods=["POST"])
    add("/aliases", admin_aliases.list_aliases, methods=["GET"])
    add("/aliases/{name:path}", admin_aliases.get_alias, methods=["GET"])
    add("/aliases/{name:path}", admin_aliases.set_alias, methods=["PUT"])
    add("/aliases/{name:path}", admin_aliases.remove_alias, methods=["DELETE"])
    add("/keys", admin_keys.list_keys, methods=["GET"])
    add("/keys", admin_keys.create_key, methods=["POST"], status_code=201)
    add("/keys/{id_or_name:path}", admin_keys.set_budget, methods=["PATCH"])
    add("/keys/{id_or_name:path}", admin_keys.revoke_key, methods=["DELETE"])
    add("/registry", admin_reports.show_registry, methods=["GET"])
    add("/usage", admin_reports.show_usage, methods=["GET"])
    add("/audit", admin_reports.show_audit, methods=["GET"])
    add("/explain", admin_explain.explain, methods=["POST"])
    add("/explain/{request_id:path}", admin_explain.explain_request, methods=["GET"])
    _add_lifecycle(router)
    return router


def _add_lifecycle(router: APIRouter) -> None:
    add = router.add_api_route
    add("/policies", admin_lifecycle.list_policies, methods=["GET"])
    add("/policies", admin_lifecycle.change_policy, methods=["PATCH"])
    add("/schedules", admin_lifecycle.list_schedules, methods=["GET"])
    add("/schedules", admin_lifecycle.add_schedule, methods=["POST"], status_code=201)
    add("/schedules/{schedule_id:path}", admin_lifecycle.remove_schedule, methods=["DELETE"])
