"""`GET /metrics`: the router's counters in Prometheus's format, for keys of scope metrics or
admin."""

from collections.abc import Callable

from fastapi import APIRouter, Response

from router.api.admin.gate import CurrentAdmin, gated_route
from router.auth import SCOPE_METRICS
from router.core import Core
from router.records.metrics import CONTENT_TYPE


def metrics_routes(core_of: Callable[[], Core]) -> APIRouter:
    router = APIRouter(route_class=gated_route(core_of, SCOPE_METRICS))
    router.add_api_route("/metrics", show_metrics, methods=["GET"])
    return router


async def show_metrics(admin: CurrentAdmin) -> Response:
    return Response(admin.core.metrics.text(), media_type=CONTENT_TYPE)
