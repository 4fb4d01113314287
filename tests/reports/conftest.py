"""A model for the tests that run real MLX."""

from pathlib import Path

import pytest

from node.engine.model.blas import load_fast_blas

# Before anything imports MLX.
load_fast_blas()

from tests.mlx.likeness import use_device  # noqa: E402
from tests.mlx.tiny import make_tiny  # noqa: E402

use_device()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model."""
    return make_tiny(tmp_path_factory.mktemp("models") / "tiny")
