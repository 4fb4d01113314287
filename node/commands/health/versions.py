"""Checks of the installed versions."""

import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

from node.commands.checks import Check, Level
from node.darwin import Kernel
from node.hardware import Runner
from node.protocol.extra import INSTALL_EXTRA, WHERE

MLX_LM = "0.32.2"
"""The only version of mlx-lm that the engine is written for: it uses parts that have no promise."""
TESTED_MLX = "0.32.4"
LEAST_MACOS = 14
"""MLX's packages are built for this version and newer ones."""
LEAST_MLX = (0, 32)
"""Older ones return garbage for quantized matrices of more than 32,768 rows."""
BAD_MLX = {
    "0.32.1": "computes wrong results with quantized weights and quantized KV on a Mac's GPU",
}


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def check_versions(
    run: Runner, kernel: Kernel | None, of: Callable[[str], str | None] = installed
) -> Check:
    """Compares the versions with those that this product is written for. What is not installed at
    all is reported by other checks."""
    mlx, mlx_lm = of("mlx"), of("mlx-lm")
    macos = None if kernel is None else run(["sw_vers", "-productVersion"])
    shown = [f"mlx {mlx or 'missing'}", f"mlx-lm {mlx_lm or 'missing'}"]
    if kernel is not None:
        shown.append(f"macOS {macos or 'unknown'}")
    sentence = f"{', '.join(shown)}."
    problems = [*_mlx_problems(mlx, of("mlx-metal")), *_mlx_lm_problems(mlx_lm)]
    if problems:
        advice = f"{' '.join(problems)} Run `{INSTALL_EXTRA}` {WHERE}."
        return Check("versions", Level.FAIL, sentence, advice)
    major = _numbers(macos or "")[:1]
    if major and major[0] < LEAST_MACOS:
        advice = f"MLX needs macOS {LEAST_MACOS} or newer: update this Mac."
        return Check("versions", Level.FAIL, sentence, advice)
    if mlx is not None and _numbers(mlx) > _numbers(TESTED_MLX):
        advice = f"This version has been tested with mlx {TESTED_MLX}; a newer one may differ."
        return Check("versions", Level.WARN, sentence, advice)
    return Check("versions", Level.OK, sentence)


def _mlx_problems(mlx: str | None, metal: str | None) -> list[str]:
    if mlx is None:
        return []
    if mlx in BAD_MLX:
        return [f"mlx {mlx} {BAD_MLX[mlx]}."]
    if _numbers(mlx) < LEAST_MLX:
        return [f"mlx {mlx} is too old: it returns wrong results for large quantized matrices."]
    if metal is not None and metal != mlx:
        return [f"mlx-metal {metal} does not belong to mlx {mlx}."]
    return []


def _mlx_lm_problems(mlx_lm: str | None) -> list[str]:
    if mlx_lm is None or mlx_lm == MLX_LM:
        return []
    return [f"The engine is written for mlx-lm {MLX_LM}."]


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers at the beginning of a version; empty if there are none."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()
