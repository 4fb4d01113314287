"""Models for the tests that run real MLX."""

import os
from pathlib import Path

import pytest

from node.engine.model.blas import load_fast_blas

# Before anything imports MLX.
load_fast_blas()

from node.engine.scheduling import disk_cache  # noqa: E402
from node.engine.scheduling import engine as engine_module  # noqa: E402
from tests.mlx.kinds import KINDS, make_kind  # noqa: E402
from tests.mlx.likeness import use_device  # noqa: E402
from tests.mlx.tiny import make_tiny  # noqa: E402

use_device()
PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _patient_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a closing engine name its folder and write its KV, however busy the machine is: a thread
    of the lowest priority would get no processor time beside a process for each core."""
    monkeypatch.setattr(disk_cache, "_lower_priority", lambda: None)
    monkeypatch.setattr(disk_cache, "NAMING_S", PATIENCE_S)
    monkeypatch.setattr(engine_module, "FLUSH_S", PATIENCE_S)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session", params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model of each kind of cache."""
    return make_kind(request.param, tmp_path_factory.mktemp("kinds") / request.param)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct in float32; locally optional, in CI not."""
    folder = os.environ.get("MLX_FLEET_SMOLLM2")
    if folder and Path(folder).is_dir():
        return Path(folder)
    message = "MLX_FLEET_SMOLLM2 names no folder of SmolLM2-135M-Instruct in float32"
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
