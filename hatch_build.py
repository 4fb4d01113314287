"""The build hook of the wheel: compiles the router's pure modules where `MLX_FLEET_COMPILE=1` asks.

The modules and the reason for each are in docs/decisions/0028-pure-modules-compile.md; their list
is in pyproject.toml. Without the variable nothing is compiled and no compiler is needed.
"""

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "MLX_FLEET_COMPILE"


class CompileHook(BuildHookInterface[Any]):
    """Delegates to hatch-mypyc where compiling is asked for."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Packages that the build needs beside hatchling: mypyc reads the types of what the
        modules import."""
        return list(self.config["compile-dependencies"]) if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if _is_wanted() and version != "editable":
            from hatch_mypyc.plugin import MypycBuildHook  # noqa: PLC0415  only installed there

            hook = MypycBuildHook(
                self.root,
                self.config,
                self.build_config,
                self.metadata,
                self.directory,
                self.target_name,
                self.app,
            )
            hook.initialize(version, build_data)


def _is_wanted() -> bool:
    value = os.environ.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE} is {value!r}; it may be 0 or 1.")
    return value == "1"
