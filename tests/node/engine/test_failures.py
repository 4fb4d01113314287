"""Tests how an engine classifies errors. The texts are those that MLX raises."""

import pytest

from node.engine.failures import Failures, FailureScope

COMMAND = "[METAL] Command buffer execution failed: "


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (
            f"{COMMAND}Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
            FailureScope.OVERLOADED_PROCESS,
        ),
        (
            f"{COMMAND}Impacting Interactivity "
            "(0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)",
            FailureScope.OVERLOADED_PROCESS,
        ),
        (
            f"{COMMAND}Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            FailureScope.OVERLOADED_PROCESS,
        ),
        (
            f"{COMMAND}Ignored (for causing prior/excessive GPU errors) "
            "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)",
            FailureScope.PROCESS,
        ),
        ("[metal::malloc] Resource limit (499000) exceeded.", FailureScope.PROCESS),
        (
            "[metal::malloc] Attempting to allocate 103918075904 bytes which is greater than the "
            "maximum allowed buffer size of 86586540032 bytes.",
            FailureScope.ROWS,
        ),
        ("[matmul] Last dimension of first input with shape (1,2) must match.", FailureScope.ROWS),
    ],
)
def test_an_error_of_the_gpu_is_the_end_of_the_process(text: str, verdict: FailureScope) -> None:
    assert Failures().judge(RuntimeError(text)) is verdict


def test_a_second_failure_is_the_end_unless_a_token_was_generated_between() -> None:
    failures = Failures()
    assert failures.judge(ValueError("x")) is FailureScope.ROWS
    failures.note_token()
    assert failures.judge(ValueError("x")) is FailureScope.ROWS
    assert failures.judge(ValueError("y")) is FailureScope.PROCESS


def test_a_buffer_that_is_too_large_is_no_sign_of_a_broken_engine() -> None:
    failures = Failures()
    for _ in range(5):
        error = RuntimeError("[metal::malloc] 9 is greater than the maximum allowed buffer size")
        assert failures.judge(error) is FailureScope.ROWS
