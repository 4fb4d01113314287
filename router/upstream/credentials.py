"""Credentials by which the router authenticates itself to nodes, and checks of node addresses."""

import ssl
from urllib.parse import SplitResult, urlsplit

import msgspec

from node.protocol.paths import DEFAULT_PORT
from router.errors import BadRequest, PlainHttpRefused
from serving.own_machine import is_loopback
from serving.tls.pinning import pinned_context


class NodeCredential(msgspec.Struct, frozen=True):
    """A bearer token for one node, and the way to it."""

    token: str = ""
    """Empty for a third-party server that requires none."""
    allow_plain_http: bool = False
    """True if the token may be sent over plain HTTP off loopback."""
    certificate: str = ""
    """In PEM, the only one with which the server is this node; empty for a server that is known by
    its name, or over plain HTTP."""

    def __repr__(self) -> str:
        return (
            f"NodeCredential(token='…', allow_plain_http={self.allow_plain_http}, "
            f"is_paired={self.is_paired})"
        )

    @property
    def is_paired(self) -> bool:
        return bool(self.certificate)

    def pin(self) -> ssl.SSLContext | None:
        """The context for connections to a paired node; None for others."""
        return pinned_context(self.certificate) if self.certificate else None

    def leads_like(self, other: "NodeCredential") -> bool:
        """True if connections made with the other one can be used with this one."""
        return self.certificate == other.certificate

    def check(self) -> None:
        """Raises `BadRequest` for a token that no HTTP header can contain."""
        if not all("!" <= char <= "~" for char in self.token):
            raise BadRequest(
                "A token has letters, digits and signs only; was a line break copied with it?",
                param="token",
            )

    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    def text(self) -> str:
        """Encodes the credential for the registry."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> "NodeCredential":
        return msgspec.json.decode(text.encode(), type=cls)


def pairing_url(text: str) -> str:
    """Returns the base URL of an agent to pair with, which a person may have written as a mere host
    name. Raises `BadRequest`."""
    parts = _split(text if "://" in text else f"https://{text}")
    if parts is not None and parts.scheme != "https":
        raise BadRequest(
            "An agent is paired over https; leave http:// out of its address.", param="url"
        )
    if parts is not None and parts.hostname and not parts.port:
        parts = parts._replace(netloc=f"{parts.netloc.rstrip(':')}:{DEFAULT_PORT}")
    return check_node_url(parts.geturl() if parts else text, NodeCredential())


def check_node_url(url: str, credential: NodeCredential) -> str:
    """Returns the node's base URL without a trailing slash.

    Raises `BadRequest` for anything but an http(s) base URL, `PlainHttpRefused` for plain HTTP to
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
            "A node's address has no user, password or query; give the token with --token.",
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
    """Returns None if the address or its port is not valid."""
    if any(char.isspace() for char in url):
        return None
    try:
        parts = urlsplit(url)
        return parts if parts.port != 0 else None
    except ValueError:
        return None
