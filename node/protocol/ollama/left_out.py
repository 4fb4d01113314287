"""Paths of Ollama's API that this server leaves out, and why."""

from collections.abc import Mapping

from node.protocol.paths import OLLAMA_PREFIX

RUNNING = "Ollama is running"
"""The response at `/`, by which clients of Ollama see that a server is there."""
_PULL = "`router models pull` and `node-agent pull` fetch models"
_LEFT_OUT: Mapping[str, str] = {
    "embed": "This version of mlx-fleet computes no embeddings.",
    "embeddings": "This version of mlx-fleet computes no embeddings.",
    "pull": f"Models are not pulled through this API: {_PULL}.",
    "push": "Models are not pushed anywhere: there is no registry of models here.",
    "create": (
        f"Models are not made through this API: {_PULL}, `node-agent import` reads GGUF files."
    ),
    "copy": "Models are not renamed through this API: `router alias set` gives one another name.",
    "delete": "Models are not deleted through this API: use `router models rm` or `node-agent rm`.",
    "blobs": f"Files are not uploaded through this API: {_PULL}.",
}


def why_left_out(path: str) -> str | None:
    """Returns a sentence for a path that Ollama has and this server has not; None for others."""
    name = path.removeprefix(OLLAMA_PREFIX).partition("/")[0]
    return _LEFT_OUT.get(name) if path.startswith(OLLAMA_PREFIX) else None


def pulled_line() -> bytes:
    """Returns the response to a pull of a model that is here already, as the last line of a
    stream; clients pull models to make sure that they are there."""
    return b'{"status":"success"}\n'
