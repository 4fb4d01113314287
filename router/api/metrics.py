"""`GET /metrics`: the router's figures in Prometheus's format, and `GET /metrics/nodes/NAME`: those
of an agent, for keys of scope metrics or admin."""

from collections.abc import Callable

from fastapi import APIRouter, Response

from router.api.admin.gate import CurrentAdmin, gated_route
from router.api.admin.models import client_of, named_agent
from router.auth import SCOPE_METRICS
from router.core import Core
from router.records.metrics import CONTENT_TYPE


def metrics_routes(core_of: Callable[[], Core]) -> APIRouter:
    router = APIRouter(route_class=gated_route(core_of, SCOPE_METRICS))
    router.add_api_route("/metrics", show_metrics, methods=["GET"])
    router.add_api_route("/metrics/nodes/{name:path}", show_node_metrics, methods=["GET"])
    return router


async def show_metrics(admin: CurrentAdmin) -> Response:
    return Response(admin.core.metrics.text(), media_type=CONTENT_TYPE)


async def show_node_metrics(admin: CurrentAdmin, name: str) -> Response:
    """Reads the agent's figures over the router's own connection to it."""
    client = client_of(admin.core, named_agent(admin.core, name))
    return Response(await client.control.metrics(), media_type=CONTENT_TYPE)
