"""The router's figures as Prometheus reads them."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from router.client.error_dialects import refusal_body
from router.records.metrics import CONTENT_TYPE, Metrics
from router.types import Lease, Priority
from serving.http.callers import Callers, Limits
from tests.router.conftest import running_router

LEASE = Lease("r", "a", "m", 0.0, 1)


def figures(metrics: Metrics) -> dict[str, float]:
    """By name and labels, as the text has them."""
    return parsed(metrics.text().decode())


def parsed(text: str) -> dict[str, float]:
    return {
        sample.name
        + "{"
        + ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
        + "}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def made() -> Metrics:
    return Metrics({"a": "studio"}.__getitem__)


def test_requests_are_counted_by_model_node_and_outcome() -> None:
    metrics = made()
    metrics.request_ended("m", "a", "served")
    metrics.request_ended("m", "a", "served")
    metrics.request_ended("m", "", "queue_full")
    found = figures(metrics)
    assert found['mlx_fleet_requests_total{model="m",node="studio",outcome="served"}'] == 2
    assert found['mlx_fleet_requests_total{model="m",node="",outcome="queue_full"}'] == 1


def test_waits_are_histograms() -> None:
    metrics = made()
    metrics.first_content(LEASE, 0.3)
    metrics.queue_left("m", Priority.BATCH, 3.0)
    found = figures(metrics)
    assert found['mlx_fleet_ttft_seconds_bucket{le="0.5",model="m",node="studio"}'] == 1
    assert found['mlx_fleet_ttft_seconds_bucket{le="0.25",model="m",node="studio"}'] == 0
    assert found['mlx_fleet_queue_wait_seconds_sum{class="batch",model="m"}'] == 3


def test_what_paid_servers_cost_is_summed() -> None:
    metrics = made()
    for cost in (0.5, 0.0, 0.25):
        metrics.charged(LEASE, cost)
    assert figures(metrics)['mlx_fleet_paid_cost_total{model="m",node="studio"}'] == 0.75


def test_gauges_are_read_when_they_are_scraped() -> None:
    metrics, queued = made(), {"a": 1}
    metrics.add_node_gauge("open_leases", "Requests on a node.", lambda: queued)
    metrics.add_gauge("waiting", "In the queue.", ("model", "class"), lambda: [(("m", "x"), 7)])
    queued["a"] = 5
    found = figures(metrics)
    assert found['mlx_fleet_open_leases{node="studio"}'] == 5
    assert found['mlx_fleet_waiting{class="x",model="m"}'] == 7


def test_connections_that_were_not_kept_are_counted_by_the_reason() -> None:
    metrics = made()
    callers = Callers(refusal_body, Limits(connections=1, unknown_of_one_address=1))
    metrics.add_callers(callers)
    for connections in (1, 1, 2, 2, 2):
        callers.admit(Mute(), "a", connections, descriptor=1)
    found = figures(metrics)
    assert found['mlx_fleet_dropped_connections_total{reason="no_key"}'] == 1
    assert found['mlx_fleet_dropped_connections_total{reason="open_files"}'] == 3


class Mute:
    """A connection."""

    def abort(self) -> None: ...


def test_two_routers_in_one_process_count_apart() -> None:
    one, other = made(), made()
    one.request_ended("m", "a", "served")
    assert any(name.startswith("mlx_fleet_requests_total") for name in figures(one))
    assert not any(name.startswith("mlx_fleet_requests_total") for name in figures(other))


async def test_the_page_needs_a_key_of_scope_admin(tmp_path: Path) -> None:
    async with running_router(tmp_path) as router:
        admin = router.new_key("admin")
        page = await router.send("GET", "/metrics")
        assert await page.head() == 401
        page = await router.send("GET", "/metrics", authorization=f"Bearer {router.key}")
        assert await page.head() == 403
        router.core.metrics.request_ended("m", "", "no_node")
        page = await router.send("GET", "/metrics", authorization=f"Bearer {admin}")
        found = parsed((await page.body()).decode())
        assert page.status == 200 and page.headers["content-type"] == CONTENT_TYPE
        assert found['mlx_fleet_requests_total{model="m",node="",outcome="no_node"}'] == 1
        other = await router.send("POST", "/metrics", authorization=f"Bearer {admin}")
        assert await other.head() == 405 and other.headers["allow"] == "GET, HEAD"
