"""Checks the methods of `/v1/*`."""

from router.api.bodies import Scope
from router.errors import MethodNotAllowed, UnknownPath


def check_method(scope: Scope, *methods: str, is_there: bool = True) -> str:
    """Returns the request's method if it is one of these; HEAD counts as GET, since the server
    omits the body. Raises `MethodNotAllowed`. If `is_there` is False, the path does not name an
    existing resource, and another method raises `UnknownPath`."""
    method: str = scope["method"]
    if method in methods:
        return method
    if method == "HEAD" and "GET" in methods:
        return "GET"
    if not is_there:
        raise UnknownPath.at(scope["path"])
    raise MethodNotAllowed.at(scope["path"], methods)
