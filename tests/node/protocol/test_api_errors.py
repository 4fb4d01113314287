"""Errors that router and agent share."""

import pytest

import node.errors
import router.errors
from node.protocol import api_errors
from node.protocol.api_errors import ApiError, MethodNotAllowedError

SHARED = [each for each in ApiError.__subclasses__() if each.__module__ == api_errors.__name__]


@pytest.mark.parametrize("kind", SHARED)
def test_router_and_agent_have_the_same_errors(kind: type[ApiError]) -> None:
    shared = kind()
    for errors, base in (
        (node.errors, node.errors.NodeError),
        (router.errors, router.errors.RouterError),
    ):
        error = getattr(errors, kind.__name__.removesuffix("Error"))()
        assert isinstance(error, kind) and isinstance(error, base)
        assert error.message == shared.message
        assert (error.status, error.code, error.kind) == (shared.status, shared.code, shared.kind)
        assert (error.retry_after_s, error.is_final) == (shared.retry_after_s, shared.is_final)


def test_an_error_is_final_by_its_status_or_by_its_class() -> None:
    assert not ApiError().is_final
    assert api_errors.BodyTooLargeError().is_final
    assert (
        api_errors.RequestCancelledError.status == 409
        and api_errors.RequestCancelledError().is_final
    )
    assert not api_errors.TooManyWaitingError().is_final


def test_an_error_may_have_its_own_message_param_and_time() -> None:
    error = ApiError("Words.", param="n", retry_after_s=7)
    assert (error.message, error.param, error.retry_after_s) == ("Words.", "n", 7)
    assert (ApiError.param, ApiError.retry_after_s) == (None, None)


@pytest.mark.parametrize(
    ("methods", "words", "allow"),
    [
        (("POST",), "/a accepts POST.", "POST"),
        (("GET", "DELETE"), "/a accepts GET and DELETE.", "GET, DELETE, HEAD"),
        (["GET", "HEAD"], "/a accepts GET and HEAD.", "GET, HEAD"),
    ],
)
def test_a_wrong_method_names_the_right_ones(methods: list[str], words: str, allow: str) -> None:
    error = MethodNotAllowedError.at("/a", methods)
    assert (error.message, error.allow) == (words, allow)
    assert len(MethodNotAllowedError.at("/" + "a" * 999, methods).message) < 300
