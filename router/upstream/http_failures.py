"""Failures of a connection to a node. Apart from `http_response`, which is compiled: mypyc cannot
compile a class that inherits from a builtin exception."""


class UpstreamBroken(ConnectionError):
    """The connection to the node broke, or the data on it is not HTTP."""


class NoResponse(UpstreamBroken):
    """The node closed the connection before its response."""


class CutOff(UpstreamBroken):
    """The router itself ended the request on its node, because an admin drains the node."""


class NotConnected(UpstreamBroken):
    """The node does not accept a connection in time."""
