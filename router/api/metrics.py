"""`GET /metrics`: what the router counts, for Prometheus. With a key of scope admin."""

from collections.abc import Callable

from fastapi import APIRouter, Response

from router.api.admin.gate import AdminGiven, gated_route
from router.core import Core
from router.records.metrics import CONTENT_TYPE


def metrics_routes(core_of: Callable[[], Core]) -> APIRouter:
    router = APIRouter(route_class=gated_route(core_of))
    router.add_api_route("/metrics", show_metrics, methods=["GET"])
    return router


async def show_metrics(admin: AdminGiven) -> Response:
    return Response(admin.core.metrics.text(), media_type=CONTENT_TYPE)
