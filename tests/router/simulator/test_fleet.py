"""Fleets from TOML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from router.simulator.fleet import (
    FleetError,
    NodeSpec,
    check_models,
    equal_fleet,
    read_fleet,
    spread,
)
from router.simulator.table import POLICIES

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "simulate.md"
TWO_KINDS = """
[[node]]
name = "studio"
prefill_tokens_per_s = 2000
cache_tokens = 200000

[[node]]
count = 2
snapshot_only = true
disk_tokens = 400_000
"""


def test_each_node_of_a_fleet_file_has_a_spec_and_a_name_of_its_own() -> None:
    specs = read_fleet(TWO_KINDS)
    assert [spec.name for spec in specs] == ["studio", "mac-1", "mac-2"]
    assert specs[0].prefill_tokens_per_s == 2000
    assert specs[0].decode_tokens_per_s == 40
    assert specs[2].snapshot_only
    assert specs[2].disk_tokens == 400_000


def test_equal_macs_have_the_default_figures() -> None:
    specs = equal_fleet(3)
    assert [spec.name for spec in specs] == ["mac-1", "mac-2", "mac-3"]
    assert {spec.prefill_tokens_per_s for spec in specs} == {600.0}
    assert {spec.cache_tokens for spec in specs} == {60_000}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[node]", "not TOML"),
        ("", "node"),
        ("node = []", "length >= 1"),
        ("[[node]]\nprefil = 3", "`prefil`"),
        ("[[node]]\nprefill_tokens_per_s = 0", "`node[0].prefill_tokens_per_s`"),
        ("[[node]]\n[[node]]\ncount = 'x'", "`node[1].count`"),
        ("[[node]]\ncount = 1000000000", "<= 256"),
        ("[[node]]\ncount = 200\n[[node]]\ncount = 57", "257 nodes; a simulated fleet has 256"),
        ("[[node]]\nprefill_tokens_per_s = inf", "`node[0].prefill_tokens_per_s`"),
        ("[[node]]\ndecode_tokens_per_s = nan", "`node[0].decode_tokens_per_s`"),
        ("[[node]]\nload_s = inf", "`node[0].load_s`"),
        ("[[node]]\ndisk_models = -1", "`node[0].disk_models`"),
        ("[[node]]\nmodel_bytes = 0", "`node[0].model_bytes`"),
        ("[[node]]\nlan_bytes_per_s = 0", "`node[0].lan_bytes_per_s`"),
        ("[[node]]\nlan_bytes_per_s = nan", "`node[0].lan_bytes_per_s`"),
        ("[[node]]\ncache_tokens = 1_000_000_000_000_000", "`node[0].cache_tokens`"),
    ],
)
def test_an_error_in_a_fleet_file_names_the_key(text: str, message: str) -> None:
    with pytest.raises(FleetError) as caught:
        read_fleet(text)
    assert message in str(caught.value)


def test_a_model_that_is_on_no_disk_can_be_copied_from_nowhere() -> None:
    specs = spread([NodeSpec(count=2, disk_models=1)])
    check_models(specs, ("a", "b"))
    with pytest.raises(FleetError, match="no node has the 1 last of the trace's 3 models"):
        check_models(specs, ("a", "b", "c"))
    check_models(equal_fleet(1), ("a", "b", "c"))


def test_every_key_of_a_fleet_file_and_every_policy_is_documented() -> None:
    text = PAGE.read_text()
    keys = [f"\n{name} = " for name in NodeSpec.__struct_fields__]
    policies = [f"| `{name}` |" for name in POLICIES]
    assert [each for each in keys + policies if each not in text] == []


def test_the_documented_fleet_file_has_the_default_figures() -> None:
    text = PAGE.read_text()
    (example,) = re.findall(r"```toml\n(\[\[node\]\].*?)```", text, re.DOTALL)
    assert read_fleet(example) == (NodeSpec(),)
