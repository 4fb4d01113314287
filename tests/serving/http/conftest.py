"""Runs a test with both kinds of connections."""

from collections.abc import Iterator

import pytest

from serving.tls.own_certificate import own_certificate
from tests.serving.http.connections import OVER


@pytest.fixture(params=["tcp", "tls"])
def over(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The servers of the test are reached over TCP, and in a second run over TLS."""
    if request.param == "tls":
        file = tmp_path_factory.getbasetemp() / "connections.pem"
        OVER.certificate = own_certificate(file)
    yield request.param
    OVER.certificate = None
