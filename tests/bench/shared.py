"""The bench tools that stand outside the project, in the folder `$MLX_FLEET_SHARED`.

Nothing of them is copied: the load generator is imported from there, the rest are started.
"""

import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CACHE = Path(".cache/bench")
"""Under the folder that the bench is started in."""

_MODEL_FILES = (
    "config.json",
    "chat_template.jinja",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)


@dataclass(frozen=True, slots=True)
class SharedTools:
    """The scripts of `$MLX_FLEET_SHARED/bench`."""

    folder: Path

    def script(self, name: str) -> Path:
        return self.folder / name

    def loadgen(self) -> Any:
        """The module `loadgen`: `run(argv) -> summary`."""
        spec = importlib.util.spec_from_file_location("loadgen", self.script("loadgen.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def tiny_model(self, smollm2: Path) -> Path:
        """The tiny random llama with the tokenizer of `smollm2`; made once."""
        folder = CACHE / "tiny"
        if not (folder / "model.safetensors").exists():
            missing = [name for name in _MODEL_FILES if not (smollm2 / name).exists()]
            if missing:
                raise SystemExit(f"{smollm2} lacks {', '.join(missing)}.")
            script = str(self.script("mktiny.py"))
            subprocess.run([sys.executable, script, str(smollm2), str(folder)], check=True)
        return folder.resolve()


def find_tools() -> SharedTools | None:
    """None, and a line that reports it, where the folder is not there."""
    named = os.environ.get("MLX_FLEET_SHARED", "")
    folder = Path(named).expanduser() / "bench"
    if named and (folder / "loadgen.py").exists():
        return SharedTools(folder.resolve())
    where = f"{named!r} holds no bench/loadgen.py" if named else "it is not set"
    print(f"Nothing measured: the bench tools are looked for in $MLX_FLEET_SHARED, and {where}.")
    return None


def smollm2_folder() -> Path | None:
    """The fp32 model folder in `$MLX_FLEET_SMOLLM2`; None where there is none."""
    named = os.environ.get("MLX_FLEET_SMOLLM2", "")
    folder = Path(named).expanduser()
    return folder.resolve() if named and (folder / "config.json").exists() else None
