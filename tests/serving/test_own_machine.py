"""Tests that addresses of this machine are distinguished from others."""

from pathlib import Path

import pytest

from serving.own_machine import default_home, is_loopback


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.8.8.8", "::1", "[::1]"],
)
def test_this_machine_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        *("0.0.0.0", "", "::", "10.0.0.1", "mac.local", "127.0.0.1.example.com", "xlocalhost"),
        *("evil.example", "localhost.evil.example"),
    ],
)
def test_everything_else_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_each_product_has_a_folder_of_one_home() -> None:
    assert default_home("node", {"MLX_FLEET_HOME": "/a b"}) == Path("/a b/node")
    assert default_home("router", {"MLX_FLEET_HOME": ""}) == Path.home() / ".mlx-fleet" / "router"
