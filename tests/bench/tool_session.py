"""A session of twelve turns in which an agent calls tools, all of it written beforehand, so that
every model gets the same prompts. Tool results go as messages of the user."""

import random
from dataclasses import dataclass

from tests.bench.sides import Chat, Server

TURNS = 12
MAX_TOKENS = 8
_TOOLS = ("read_file", "list_folder", "run_tests", "search_text", "write_file")
_NAMES = ("area", "width", "weather", "time", "answer", "city", "number", "image")


@dataclass(frozen=True, slots=True)
class Turn:
    """Tokens of one request, as the server reports them."""

    prompt_tokens: int
    cached_tokens: int


def turns() -> list[Chat]:
    """The messages of each request; each begins with those of the one before."""
    chance = random.Random(3)
    tools = "\n".join(f'{{"name": "{tool}", "arguments": {{"path": "string"}}}}' for tool in _TOOLS)
    chat = [
        {"role": "system", "content": f"You are a helpful assistant. Tools:\n{tools}"},
        {"role": "user", "content": "The tests of the weather service fail. Find out why."},
    ]
    made = [chat]
    for _ in range(TURNS - 1):
        call = f'{{"name": "{chance.choice(_TOOLS)}", "arguments": {{"path": "{_name(chance)}"}}}}'
        result = "\n".join(
            f"{number}: def {_name(chance)}({_name(chance)}): return {chance.randrange(1000)}"
            for number in range(1, chance.randrange(3, 7))
        )
        chat = [
            *chat,
            {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
            {"role": "user", "content": f"<tool_response>\n{result}\n</tool_response>"},
        ]
        made.append(chat)
    return made


def _name(chance: random.Random) -> str:
    return f"{chance.choice(_NAMES)}_{chance.choice(_NAMES)}"


def run(server: Server) -> list[Turn]:
    """Raises `OSError` where the server refuses a request."""
    found = []
    for chat in turns():
        usage = server.ask(chat, MAX_TOKENS)
        details = usage.get("prompt_tokens_details") or {}
        found.append(Turn(usage["prompt_tokens"], details.get("cached_tokens") or 0))
    return found


def reused_share(found: list[Turn]) -> float:
    """From the second turn on: the first has nothing to reuse."""
    later = found[1:]
    return sum(turn.cached_tokens for turn in later) / sum(turn.prompt_tokens for turn in later)
