"""Finding a server."""

import pytest

from serving.server_url import own_url, read_url
from serving.setting import BadSetting


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("localhost", "http://localhost:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("192.0.2.1", "http://127.0.0.1:1"),
        ("::1", "http://[::1]:1"),
        ("[::1]", "http://[::1]:1"),
    ],
)
def test_this_machines_server_is_reached_at_loopback(host: str, url: str) -> None:
    assert own_url(host, 1) == url


@pytest.mark.parametrize("text", ["mini:1", "http://mini:1/", "mini:1/v1", "http://mini:1/v1/"])
def test_an_address_is_read_as_people_write_it(text: str) -> None:
    assert read_url(text, "http://x") == "http://mini:1"


@pytest.mark.parametrize(
    "text", ["", "ftp://mini", "mini:99999", "mini:x", "http://[::1", "m\u00fc:1"]
)
def test_an_address_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadSetting, match="is not an address; one looks like http://x:1"):
        read_url(text, "http://x:1")
