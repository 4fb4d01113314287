"""The router's figures as Prometheus reads them."""

from pathlib import Path

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from router.client.error_dialects import refusal_body
from router.errors import LimitExceeded, Unauthorized
from router.records.collectors import OTHERS, TokenCounter
from router.records.metrics import CONTENT_TYPE, Metrics
from router.types import Lease, Priority, Ticket, Tokens
from serving.http.callers import Callers, Limits
from tests.router.conftest import running_router, ticket

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


def test_a_value_at_a_bucket_s_bound_is_in_it() -> None:
    metrics = made()
    for ttft_s in (0.25, 0.3, 1000.0):
        metrics.first_content(LEASE, ttft_s)
    found = figures(metrics)
    labels = 'model="m",node="studio"'
    assert found[f'mlx_fleet_ttft_seconds_bucket{{le="0.25",{labels}}}'] == 1
    assert found[f'mlx_fleet_ttft_seconds_bucket{{le="320.0",{labels}}}'] == 2
    assert found[f'mlx_fleet_ttft_seconds_bucket{{le="+Inf",{labels}}}'] == 3
    assert found[f"mlx_fleet_ttft_seconds_count{{{labels}}}"] == 3


def keyed(prefix: str) -> Ticket:
    made = ticket()
    return replace(made, caller=replace(made.caller, prefix=prefix))


def test_tokens_are_counted_by_model_key_and_kind() -> None:
    metrics = made()
    metrics.used(keyed("mlxf-1"), LEASE, Tokens(10, 4, 6, 2), 0.03)
    metrics.used(keyed("mlxf-1"), LEASE, Tokens(1, 0, 1), None)
    metrics.used(keyed("mlxf-2"), LEASE, None, None)
    found = figures(metrics)
    for kind, count in (("prompt", 11), ("cached", 4), ("completion", 7), ("reasoning", 2)):
        assert found[f'mlx_fleet_tokens_total{{key="mlxf-1",kind="{kind}",model="m"}}'] == count
    assert not any("mlxf-2" in name for name in found)
    assert found['mlx_fleet_inter_token_seconds_count{model="m",node="studio"}'] == 1


def test_keys_beyond_a_number_are_counted_together() -> None:
    counter = TokenCounter("tokens", "Tokens.", most_series=2)
    for key in ("a", "b", "c", "d", "a"):
        counter.add("m", key, Tokens(1, 0, 1))
    (family,) = counter.collect()
    prompt = [each for each in family.samples if each.labels["kind"] == "prompt"]
    found = {each.labels["key"]: each.value for each in prompt}
    assert found == {"a": 2, "b": 1, OTHERS: 2}


def test_refusals_are_counted_by_code_and_limit_and_aborts_by_phase() -> None:
    metrics = made()
    metrics.refused(Unauthorized())
    metrics.refused(LimitExceeded(limit="tokens_per_day"))
    metrics.aborted("m", "disconnect", "queue")
    found = figures(metrics)
    assert found['mlx_fleet_refused_requests_total{reason="invalid_api_key"}'] == 1
    assert found['mlx_fleet_refused_requests_total{reason="tokens_per_day"}'] == 1
    labels = 'by="disconnect",model="m",phase="queue"'
    assert found[f"mlx_fleet_aborted_requests_total{{{labels}}}"] == 1


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
