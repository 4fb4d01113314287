"""The limit of open files, in a process of its own: it is one for all threads."""

import resource
import subprocess
import sys

import pytest

from serving.open_files import open_files

RAISE = """
import resource
from serving.open_files import allow_many_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
print(allow_many_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_a_shells_256_files_are_raised_as_far_as_the_system_lets_us() -> None:
    done = subprocess.run([sys.executable, "-c", RAISE], capture_output=True, text=True, check=True)
    reported, soft, hard = map(int, done.stdout.split())
    assert reported == soft
    assert soft == (10_240 if hard == resource.RLIM_INFINITY else min(hard, 10_240))


@pytest.mark.parametrize("soft", [4, resource.RLIM_INFINITY])
def test_the_limit_is_a_number_also_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, soft: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    assert open_files() == (10_240 if soft == resource.RLIM_INFINITY else soft)
