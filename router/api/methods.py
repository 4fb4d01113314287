"""Which methods a path of `/v1/*` takes."""

from router.api.bodies import Scope
from router.errors import MethodNotAllowed


def need(scope: Scope, *methods: str) -> str:
    """The request's method, if it is one of these. HEAD is GET whose answer's body the server
    leaves out. Raises `MethodNotAllowed`."""
    method: str = scope["method"]
    if method in methods:
        return method
    if method == "HEAD" and "GET" in methods:
        return "GET"
    raise MethodNotAllowed.at(scope["path"], methods)
