from __future__ import annotations

import pytest

from router.errors import BadRequest, PlainHttpRefused
from router.upstream.credentials import NodeCredential, check_node_url

CLOSED = NodeCredential("secret")
OPEN = NodeCredential("secret", allow_plain_http=True)


def test_the_registry_s_text_gives_the_credential_back() -> None:
    assert NodeCredential.from_text(OPEN.text()) == OPEN


def test_a_credential_never_shows_its_token() -> None:
    assert "secret" not in repr(CLOSED) + str(CLOSED) + f"{CLOSED}"


def test_a_token_is_a_bearer_header_and_an_empty_one_is_none() -> None:
    assert CLOSED.headers() == {"authorization": "Bearer secret"}
    assert NodeCredential().headers() == {}


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("127.0.0.1:8801", "http://127.0.0.1:8801"),
        ("http://localhost:8801/", "http://localhost:8801"),
        ("http://[::1]:8801", "http://[::1]:8801"),
        ("https://mac.local", "https://mac.local"),
        ("HTTPS://mac.local/base/", "https://mac.local/base"),
    ],
)
def test_a_node_s_address_is_brought_to_one_form(given: str, made: str) -> None:
    assert check_node_url(given, CLOSED) == made


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://mac.local",
        "http://",
        "http://:8801",
        "http://mac.local:99999",
        "http://mac.local:0",
        "http://mac.local:x",
        "http://[::1",
        "http://mac local",
        "http://mac.local:8801\n",
    ],
)
def test_what_is_no_address_is_refused_and_repeated(url: str) -> None:
    with pytest.raises(BadRequest, match="not a node's address") as raised:
        check_node_url(url, OPEN)
    assert raised.value.param == "url"
    assert repr(url) in raised.value.message


@pytest.mark.parametrize(
    "url", ["http://u:secret@mac.local", "http://u@mac.local", "http://m?a=secret", "http://m#a"]
)
def test_an_address_contains_no_secret_and_none_is_repeated(url: str) -> None:
    with pytest.raises(BadRequest, match="--token") as raised:
        check_node_url(url, OPEN)
    assert "secret" not in raised.value.message


def test_plain_http_to_another_machine_needs_the_admin_s_permission() -> None:
    with pytest.raises(PlainHttpRefused, match="--allow-plain-http"):
        check_node_url("mac.local:8801", CLOSED)
    assert check_node_url("mac.local:8801", OPEN) == "http://mac.local:8801"


@pytest.mark.parametrize("token", ["two\nlines", "a b", "tab\t", "naïve"])
def test_a_token_that_no_header_can_carry_is_refused(token: str) -> None:
    with pytest.raises(BadRequest) as caught:
        NodeCredential(token).check()
    assert caught.value.param == "token"
    NodeCredential("0123abcd-._~").check()
    NodeCredential("").check()
