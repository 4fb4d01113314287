"""How the router proves itself to a node. The one place that knows what a credential is made of."""

from urllib.parse import SplitResult, urlsplit

import msgspec

from router.errors import BadRequest, PlainHttpRefused
from serving.own_machine import is_loopback


class NodeCredential(msgspec.Struct, frozen=True):
    """A bearer token for one node, and whether it may travel over plain HTTP off loopback."""

    token: str = ""
    """Empty for a foreign server that asks for none."""
    allow_plain_http: bool = False

    def __repr__(self) -> str:
        return f"NodeCredential(token='…', allow_plain_http={self.allow_plain_http})"

    def check(self) -> None:
        """Raises `BadRequest` for a token that no HTTP header can carry."""
        if not all("!" <= char <= "~" for char in self.token):
            raise BadRequest(
                "A token has letters, digits and signs only; was a line break copied with it?",
                param="token",
            )

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def text(self) -> str:
        """For the registry."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "NodeCredential":
        return msgspec.json.decode(text.encode(), type=cls)


def check_node_url(url: str, credential: NodeCredential) -> str:
    """The node's base URL without a trailing slash.

    Raises `BadRequest` for what is not an http(s) base URL, `PlainHttpRefused` for plain HTTP to
    another machine that the admin has not allowed.
    """
    parts = _split(url if "://" in url else f"http://{url}")
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(
            f"{url!r} is not a node's address; one looks like http://mac-mini.local:8801.",
            param="url",
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise BadRequest(
            "A node's address holds no user, password or query; give the token with --token.",
            param="url",
        )
    if (
        parts.scheme == "http"
        and not is_loopback(parts.hostname)
        and not credential.allow_plain_http
    ):
        raise PlainHttpRefused
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def _split(url: str) -> SplitResult | None:
    """None where the address cannot be parsed, or its port is no port."""
    if any(char.isspace() for char in url):
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 else None
    except ValueError:
        return None
