"""The clients that `router connect` knows, and the settings of each."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from router.commands.connect.setup import Endpoint, SettingsFile, Setup

PROVIDER = "mlx-fleet"
KEY_VARIABLE = "FLEET_API_KEY"
"""Variable with the key where a client reads one by a name of ours. It is not `MLX_FLEET_KEY`,
which the commands of this project read: theirs has to be a key of an admin."""
_NO_FILE = "reads them from variables or from its caller"


@dataclass(frozen=True, slots=True)
class Client:
    """A program that uses the fleet."""

    name: str
    title: str
    setup: Callable[[Endpoint], Setup]
    alias: str = ""
    """A pattern for the names of models that it requests by itself."""


def _claude_code(place: Endpoint) -> Setup:
    variables = {"ANTHROPIC_BASE_URL": place.url, "ANTHROPIC_AUTH_TOKEN": place.key}
    if place.model:
        tiers = ("OPUS", "SONNET", "HAIKU")
        variables["ANTHROPIC_MODEL"] = place.model
        variables |= {f"ANTHROPIC_DEFAULT_{tier}_MODEL": place.model for tier in tiers}
    if place.context_tokens:
        variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] = str(place.context_tokens)
    return Setup(
        variables=variables,
        unset=("ANTHROPIC_API_KEY",),
        run="claude",
        written=(
            SettingsFile(
                "~/.claude",
                "settings.json",
                "json",
                {"env": variables},
                variable="CLAUDE_CONFIG_DIR",
            ),
        ),
    )


def _codex(place: Endpoint) -> Setup:
    window = {"model_context_window": place.context_tokens} if place.context_tokens else {}
    provider = {
        "name": PROVIDER,
        "base_url": place.openai_url,
        "env_key": KEY_VARIABLE,
        "wire_api": "responses",
        "stream_max_retries": 3,
    }
    values = {
        "model": place.model,
        "model_provider": PROVIDER,
        **window,
        "model_providers": {PROVIDER: provider},
    }
    config = SettingsFile("~/.codex", "config.toml", "toml", values, variable="CODEX_HOME")
    key = {KEY_VARIABLE: place.key}
    return Setup(
        variables=key,
        run="codex",
        files=(config,),
        written=(config, SettingsFile("~/.codex", ".env", "env", key, variable="CODEX_HOME")),
    )


def _opencode(place: Endpoint) -> Setup:
    def config(key: str) -> SettingsFile:
        limit = {"context": place.context_tokens, "output": place.output_tokens}
        model = {"name": place.model, **({"limit": limit} if place.context_tokens else {})}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": PROVIDER,
            "options": {"baseURL": place.openai_url, "apiKey": key},
            "models": {place.model: model},
        }
        return SettingsFile(
            "~/.config",
            "opencode/opencode.json",
            "json",
            {"provider": {PROVIDER: provider}, "model": f"{PROVIDER}/{place.model}"},
            base={"$schema": "https://opencode.ai/config.json"},
            variable="XDG_CONFIG_HOME",
        )

    return Setup(
        variables={KEY_VARIABLE: place.key},
        run="opencode",
        files=(config(f"{{env:{KEY_VARIABLE}}}"),),
        written=(config(place.key),),
    )


def _cline(place: Endpoint) -> Setup:
    words = ("--provider", "openai-compatible", "--apikey", place.key, "--modelid", place.model)
    command = shlex.join(("cline", "auth", *words, "--baseurl", place.openai_url))
    return Setup(run=f"{command}\ncline", unwritten="stores them itself, by that command")


def _continue(place: Endpoint) -> Setup:
    options = {"contextLength": place.context_tokens, "maxTokens": place.output_tokens}
    model = {
        "name": PROVIDER,
        "provider": "openai",
        "model": place.model,
        "apiBase": place.openai_url,
        "apiKey": place.key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        **({"defaultCompletionOptions": options} if place.context_tokens else {}),
    }
    config = SettingsFile(
        "~/.continue",
        "config.yaml",
        "yaml",
        {"models": [model]},
        identity="name",
        base={"name": PROVIDER, "version": "1.0.0", "schema": "v1"},
        variable="CONTINUE_GLOBAL_DIR",
    )
    return Setup(files=(config,), written=(config,))


def _aider(place: Endpoint) -> Setup:
    model = f"openai/{place.model}"
    facts = {
        "litellm_provider": "openai",
        "mode": "chat",
        "max_input_tokens": place.context_tokens,
        "max_output_tokens": place.output_tokens,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
    }
    known = SettingsFile("~", ".aider.model.metadata.json", "json", {model: facts})
    files = (known,) if place.context_tokens else ()
    options = {
        "model": model,
        "openai-api-base": place.openai_url,
        "openai-api-key": place.key,
    }
    return Setup(
        variables={"OPENAI_API_BASE": place.openai_url, "OPENAI_API_KEY": place.key},
        run=shlex.join(("aider", "--model", model)),
        files=files,
        written=(SettingsFile("~", ".aider.conf.yml", "yaml", options), *files),
    )


def _llm(place: Endpoint) -> Setup:
    model = {
        "model_id": "fleet",
        "model_name": place.model,
        "api_base": place.openai_url,
        "api_key_name": PROVIDER,
        "supports_tools": True,
        "supports_schema": True,
    }
    folder, variable = "~/.config/io.datasette.llm", "LLM_USER_PATH"
    name = "extra-openai-models.yaml"
    models = SettingsFile(folder, name, "yaml", [model], identity="model_id", variable=variable)
    keys = SettingsFile(folder, "keys.json", "json", {PROVIDER: place.key}, variable=variable)
    command = shlex.join(("llm", "keys", "set", PROVIDER, "--value", place.key))
    question = 'llm -m fleet "What is the capital of France?"'
    return Setup(run=f"{command}\n{question}", files=(models,), written=(models, keys))


def _open_webui(place: Endpoint) -> Setup:
    return Setup(
        variables={"OPENAI_API_BASE_URL": place.openai_url, "OPENAI_API_KEY": place.key},
        run="open-webui serve",
        unwritten="keeps them in its own database: Admin Settings, Connections",
    )


def _openai_python(place: Endpoint) -> Setup:
    code = (
        "from openai import OpenAI\n\n"
        f"client = OpenAI(base_url={json.dumps(place.openai_url)}, "
        f"api_key={json.dumps(place.key)})\n"
        "answer = client.chat.completions.create(\n"
        f"    model={json.dumps(place.model)},\n"
        '    messages=[{"role": "user", "content": "What is the capital of France?"}],\n'
        ")\n"
        "print(answer.choices[0].message.content)\n"
    )
    return Setup(code=code, unwritten=_NO_FILE)


def _langchain(place: Endpoint) -> Setup:
    code = (
        "from langchain_openai import ChatOpenAI\n\n"
        "model = ChatOpenAI(\n"
        f"    model={json.dumps(place.model)},\n"
        f"    base_url={json.dumps(place.openai_url)},\n"
        f"    api_key={json.dumps(place.key)},\n"
        "    stream_usage=True,\n"
        ")\n"
        'print(model.invoke("What is the capital of France?").content)\n'
    )
    return Setup(code=code, unwritten=_NO_FILE)


CLIENTS: Mapping[str, Client] = {
    each.name: each
    for each in (
        Client("claude-code", "Claude Code", _claude_code, alias="claude-sonnet-4-5"),
        Client("codex", "Codex", _codex),
        Client("opencode", "OpenCode", _opencode),
        Client("cline", "Cline", _cline),
        Client("continue", "Continue", _continue),
        Client("aider", "Aider", _aider),
        Client("llm", "llm", _llm),
        Client("open-webui", "Open WebUI", _open_webui),
        Client("openai-python", "openai (Python)", _openai_python),
        Client("langchain", "LangChain", _langchain),
    )
}
