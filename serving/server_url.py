"""Finds the server that a command sends its requests to: the one that was named, or this machine's
own."""

from urllib.parse import urlsplit

from serving.own_machine import is_loopback, url_at
from serving.setting import BadSetting


def own_url(host: str, port: int) -> str:
    """The address of this machine's server, whose settings have that host and port. A server that
    listens at all addresses can be reached at 127.0.0.1, too."""
    host = host.strip("[]") if is_loopback(host) else "127.0.0.1"
    return url_at(host, port)


def read_url(text: str, example: str) -> str:
    """The address that a user wrote, with or without `http://` and `/v1`. Raises `BadSetting` with
    the example if it is none."""
    url = text.rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    if not _is_address(url):
        raise BadSetting(f"{url!r} is not an address; one looks like {example}.")
    return url.removesuffix("/v1").rstrip("/")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        # An invalid port raises ValueError.
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and url.isascii() and url.isprintable()
