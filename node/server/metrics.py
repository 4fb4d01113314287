"""`GET /metrics`: the agent's figures in Prometheus's format, for programs of its own machine and
for paired routers."""

from fastapi import APIRouter, Request, Response

from node.agent.metrics import CONTENT_TYPE, NodeMetrics
from node.protocol.messages import PATH_METRICS
from node.server.access import Access
from node.server.control_auth import shown_token


def metrics_router(metrics: NodeMetrics, access: Access) -> APIRouter:
    """The route. A program of this machine needs no token: what it reads has no names but those of
    models."""
    router = APIRouter()

    @router.get(PATH_METRICS)
    async def show(request: Request) -> Response:
        access.check_reader(request.scope, shown_token(request))
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    return router
