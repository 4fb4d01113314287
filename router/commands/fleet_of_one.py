"""Builds the command lines and the messages of `router up`. Starts nothing."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from node.protocol.extra import INSTALL_EXTRA, WHERE
from node.protocol.paths import PATH_CHAT
from router.api.admin.views import NodeRow
from router.commands import wording

HOST = "127.0.0.1"
LOCAL_NAME = "local"
INSTALL_NODE = f"The node agent is not installed here: run {INSTALL_EXTRA} {WHERE}"
PACKAGE_ROOT = Path(__file__).parents[2]
AGENT = "node-agent"
ROUTER = "router"


@dataclass(frozen=True, slots=True)
class Plan:
    """A router and one node agent on this machine; port 0 is any free port."""

    home: Path
    node_home: Path
    port: int
    node_port: int
    engine: str | None = None
    """The agent's default if None."""
    quiet: bool = False
    """True if the children's output, including request lines, is hidden unless one fails."""

    def agent_argv(self) -> list[str]:
        engine = [] if self.engine is None else ["--engine", self.engine]
        return [*_serve("node.cli", self.node_home, self.node_port), *engine]

    def router_argv(self) -> list[str]:
        logging = ["--no-log-requests"] if self.quiet else ["--log-requests"]
        return [*_serve("router", self.home, self.port), *logging]

    @property
    def token_file(self) -> Path:
        return self.node_home / "token"


def _serve(module: str, home: Path, port: int) -> list[str]:
    # -P keeps a folder named `node` or `router` in the current folder from being imported, unless
    # the current folder is this code itself.
    safe = [] if Path.cwd() == PACKAGE_ROOT else ["-P"]
    return [
        *(sys.executable, *safe, "-m", module, "serve"),
        *("--home", str(home), "--host", HOST, "--port", str(port)),
        "--exit-on-stdin-eof",
    ]


def port_sentence(option: str, port: int) -> str:
    return (
        f"Port {port} is in use by another program; choose another with {option}, or any free ones "
        "with --port 0 --node-port 0. If a fleet runs already, `router nodes` shows it."
    )


def failure(name: str, lines: Sequence[str]) -> str:
    """Explains why a child did not start or did not stay, from the end of its standard error."""
    printed = [line for line in lines if line.strip()]
    if name == AGENT and any("ModuleNotFoundError" in line for line in printed):
        return f"{INSTALL_NODE} ({printed[-1]})"
    if not printed:
        return f"{name} ended without a message."
    if len(printed) == 1 or any(line.startswith('  File "') for line in printed):
        # Each command prefixes its messages with its name, this one too.
        words = printed[-1].removeprefix(f"{name}: ")
        return words if name == ROUTER else f"{name}: {words}"
    return "\n".join([f"{name} ended; its last lines:", *printed])


def pick_model(node: NodeRow, wanted: str | None) -> str | None:
    """Returns the requested model, else one that is ready, else any."""
    if wanted:
        return wanted
    names = [model.name for model in node.models]
    ready = [model.name for model in node.models if model.state == "ready"]
    return next(iter([*ready, *names]), None)


def no_models(plan: Plan) -> str:
    return f"There is no model in {plan.node_home / 'models'} yet; `node-agent --help` shows how."


def banner(url: str, key: str | Path, node: NodeRow, plan: Plan) -> str:
    """Lists everything needed for the first request. `key` is the key's file if the output may be
    stored."""
    models = ", ".join(f"{m.name} ({wording.state_text(m.state)})" for m in node.models)
    lines = [
        f"Endpoint  {url}/v1",
        f"API key   {f'in {key}' if isinstance(key, Path) else key}",
        f"Node      {node.name} at {node.url}",
        f"Models    {models or no_models(plan)}",
        "",
        curl_line(url, key, pick_model(node, None) or "MODEL"),
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def curl_line(url: str, key: str | Path, model: str) -> str:
    """Returns one quoted line for a shell."""
    bearer = shlex.quote(f"Authorization: Bearer {key}")
    if isinstance(key, Path):
        bearer = f'"Authorization: Bearer $(cat {shlex.quote(str(key))})"'
    body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
    data = shlex.quote(msgspec.json.encode(body).decode())
    address = shlex.quote(f"{url}{PATH_CHAT}")
    return f"curl {address} -H {bearer} -H 'Content-Type: application/json' -d {data}"
