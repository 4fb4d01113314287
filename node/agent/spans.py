"""A span for each ended request."""

from functools import partial

from node.agent.events import EventHub
from node.agent.open_request import Job
from node.protocol.messages import Finished, FinishReason
from serving.tracing.spans import Tracing

SERVICE = "mlx-fleet-node"
"""The agent's name in spans."""


def hub_of(tracing: Tracing | None) -> EventHub:
    """Returns a hub each of whose records is sent as a span, too; without tracing, a plain one."""
    hub = EventHub()
    if tracing is not None:
        hub.listen(partial(send_span, tracing))
    return hub


def send_span(tracing: Tracing, finished: Finished, job: Job) -> None:
    """Sends the span of a request, within the trace of its headers."""
    attributes: dict[str, str | int | float] = {
        "http.route": job.path,
        "gen_ai.request.model": finished.model,
        "gen_ai.usage.input_tokens": finished.prompt_tokens,
        "gen_ai.usage.output_tokens": finished.completion_tokens,
        "mlx_fleet.cached_tokens": finished.cached_tokens,
        "mlx_fleet.reasoning_tokens": finished.reasoning_tokens,
        "mlx_fleet.queue_s": finished.queue_s,
        "mlx_fleet.prefill_s": finished.prefill_s,
        "mlx_fleet.decode_s": finished.decode_s,
        "mlx_fleet.outcome": finished.reason.value,
        "mlx_fleet.request_id": finished.request_id,
    }
    if finished.ttft_s is not None:
        attributes["mlx_fleet.ttft_s"] = finished.ttft_s
    span = tracing.begin(job.sender.trace, job.arrived_unix_s)
    failed = finished.reason is FinishReason.ERROR
    span.end(job.path, attributes, finished.finished_unix_s, failed=failed)
