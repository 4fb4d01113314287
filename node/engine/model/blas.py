"""A fast BLAS for MLX's CPU backend on Linux; macOS has Accelerate and needs none."""

import ctypes
import sys
from pathlib import Path

_PATHS = (
    "/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3",
    "/usr/lib/aarch64-linux-gnu/openblas-pthread/libblas.so.3",
    "/usr/lib64/libopenblasp.so.0",
    "/usr/lib64/libopenblas.so.0",
)
"""Debian and Ubuntu (`libopenblas0-pthread`), then Fedora (`openblas-threads`, `openblas`)."""


def load_fast_blas() -> str | None:
    """Loads OpenBLAS in front of the slow reference BLAS that the MLX wheel bundles.

    Works only before `mlx.core` is imported. Returns the library's path, or None if there is none
    or the system is not Linux. OPENBLAS_NUM_THREADS sets the number of threads.
    """
    if not sys.platform.startswith("linux"):
        return None
    for path in _PATHS:
        if Path(path).exists():
            # Global symbols come first when the dynamic linker resolves cblas_sgemm for MLX.
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            return path
    return None
