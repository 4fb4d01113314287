"""Inference servers by name: ours and the peers, which the shared run_server.sh starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.engine.model.blas import load_fast_blas
from tests.bench import processes
from tests.bench.machine import Cores
from tests.bench.peer_home import PeerHome
from tests.bench.shared import CACHE, SharedTools
from tests.bench.sides import Server, agent

OURS = "ours"
LLAMACPP = "llamacpp"
"""Shown beside the others, but no bar is set against it: it runs other weights."""
NO_GC = "rapid_mlx_nogc"
"""rapid_mlx without its garbage collection at the end of each stream."""
MLX_PEERS = ("mlx_lm", "vllm_mlx", "rapid_mlx", "mlx_openai", "mlx_vlm")
SERVERS = (OURS, *MLX_PEERS, LLAMACPP)

_READY_S = 120.0
_ENVIRON = {"OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@contextmanager
def serving(tools: SharedTools, home: PeerHome, name: str, folder: Path) -> Iterator[Server]:
    """The server with the model, ready. Raises `BenchFailure`."""
    if name == OURS:
        with agent(tools, Cores(), folder, _ENVIRON) as ours:
            yield ours
        return
    peer = "rapid_mlx" if name == NO_GC else name
    home.check(peer)
    port = processes.free_port()
    url = f"http://127.0.0.1:{port}"
    log = CACHE / "logs" / f"server-{name}.log"
    argv = ["bash", str(tools.script("run_server.sh")), peer, str(port), str(folder)]
    environ = {**home.environ(), **_ENVIRON, **environ_of(name, home, folder)}
    with processes.running(argv, Cores(), log, environ) as process:
        ready = processes.answers(url + "/v1/models")
        processes.wait_until(ready, process, log, _READY_S)
        model = "default_model" if name == "mlx_lm" else str(folder)
        yield Server(process, url, model, "", tools.loadgen())


def environ_of(name: str, home: PeerHome, folder: Path) -> dict[str, str]:
    """Returns the environment in which the peer is at its best. Raises `BenchFailure` where its
    model is missing."""
    if name == LLAMACPP:
        return {"GGUF": str(home.gguf(tiny=folder.name == "tiny"))}
    library = load_fast_blas()
    found = {"LD_PRELOAD": library} if library else {}
    if name == "mlx_vlm":
        found |= {"APC_ENABLED": "1", "APC_DISK_ENABLED": "0"}
    if name == NO_GC:
        found |= {"RAPID_ARGS": "--no-gc-control"}
    return found
