"""Which methods a path of `/v1/*` takes."""

from router.api.bodies import Scope
from router.errors import MethodNotAllowed, UnknownPath


def need(scope: Scope, *methods: str, is_there: bool = True) -> str:
    """The request's method, if it is one of these. HEAD is GET whose answer's body the server
    leaves out. Raises `MethodNotAllowed`. `is_there`: whether the path ends with the name of a
    thing; else another method asks for a path that only looks like one, and raises
    `UnknownPath`."""
    method: str = scope["method"]
    if method in methods:
        return method
    if method == "HEAD" and "GET" in methods:
        return "GET"
    if not is_there:
        raise UnknownPath.at(scope["path"])
    raise MethodNotAllowed.at(scope["path"], methods)
