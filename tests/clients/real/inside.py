"""Runs one scenario of one client in the network namespace that this process is started in:

    python -m tests.clients.real.inside CLIENT SCENARIO COMMANDS FOLDER

Prints in its last line what was seen.
"""

import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from tests.acceptance.processes import (
    Router,
    agent_in,
    agent_process,
    register,
    router_in,
    router_process,
)
from tests.clients.real.namespace import is_cut_off, raise_loopback
from tests.clients.real.programs import (
    CLIENTS,
    LARGE,
    SMALL,
    ClaudeCode,
    Place,
    clean_environment,
)
from tests.clients.real.scenarios import CONFIGURED_TOKENS, SCENARIOS, Ran, Session
from tests.clients.real.wire import Wire

RUN_S = 150.0
"""Longest run of a client."""


def main(client_name: str, scenario_name: str, commands: str, folder: str) -> None:
    raise_loopback()
    assert is_cut_off(), "this namespace has other networks than loopback"
    client, scenario = CLIENTS[client_name], SCENARIOS[scenario_name]
    context_tokens = scenario.context_tokens.get(client_name, CONFIGURED_TOKENS)
    script: dict[str, object] = {
        "models": [{"name": LARGE, "context_tokens": context_tokens}],
        "outputs": scenario.outputs(client),
    }
    with ExitStack() as stack:
        front = _fleet(stack, Path(folder), script)
        address = urlsplit(front.url)
        wire = Wire((address.hostname or "", address.port or 0))
        stack.callback(wire.close)
        home, work = Path(folder) / "home", Path(folder) / "work"
        home.mkdir()
        work.mkdir()
        key = front.key if scenario.is_key_right else "mlxf-wrong"
        place = Place(home, work, Path(commands), wire.url, key, CONFIGURED_TOKENS)
        client.prepare(place)

        def run(prompt: str, *, goes_on: bool = False) -> Ran:
            return ran(client.command(place, prompt, goes_on=goes_on))

        def talk(lines: str) -> Ran:
            assert isinstance(client, ClaudeCode)
            return ran(client.conversation(place), lines)

        def ran(command: list[str], lines: str = "") -> Ran:
            done = subprocess.run(
                command,
                cwd=work,
                env=clean_environment(client, place),
                input=lines,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=RUN_S,
            )
            return Ran(done.returncode, done.stdout, time.monotonic())

        def configure_context() -> None:
            client.prepare(replace(place, configured_tokens=context_tokens))

        seen = scenario.act(Session(client, work, wire, run, talk, configure_context))
        sys.stdout.write(seen + "\n")


def _fleet(stack: ExitStack, folder: Path, script: dict[str, object]) -> Router:
    """A router, and an agent for each of the two models."""
    small: dict[str, object] = {"models": [{"name": SMALL}], "text": "A short title"}
    process = stack.enter_context(router_process(folder / "router"))
    agents = {
        name: stack.enter_context(agent_process(folder / name, each, "--tool-parser", "hermes"))
        for name, each in ((LARGE, script), (SMALL, small))
    }
    front = router_in(process)
    for name, each in agents.items():
        register(front, name, agent_in(each))
    return front


if __name__ == "__main__":
    main(*sys.argv[1:])
