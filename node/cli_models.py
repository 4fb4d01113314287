"""Verbs of `node-agent` about models: at the hub, on disk and in memory."""

from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli_options import Home, Json, Token, Url, Yes, is_spare
from serving.setting_kinds import one_of
from serving.terminal.setting_options import kind_option

models_app = typer.Typer()

HubToken = Annotated[
    str | None, typer.Option(envvar="HF_TOKEN", help="The hub's token.", show_envvar=True)
]


@models_app.command()
def pull(
    repo_id: Annotated[str, typer.Argument(metavar="OWNER/NAME")],
    name: Annotated[str | None, typer.Option(help="The model's name on this node.")] = None,
    token: HubToken = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit.")] = None,
    home: Home = None,
) -> None:
    """Pull a model from the Hugging Face hub."""
    from node.commands.configuration import need_extra

    need_extra()
    from node.commands.pull import pull_model
    from node.protocol.lifecycle import PullCommand

    pull_model(home, PullCommand(name or repo_id, repo_id, revision, token))


@models_app.command("run")
def chat(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(help="Its name, or a short form that fits no other; at the hub OWNER/NAME."),
    ],
    text: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="A prompt, for one response.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Pull a missing model without a question.")
    ] = False,
    url: Url = None,
    token: Token = None,
    home: Home = None,
) -> None:
    """Chat with a model: pull it if it is not here, start an agent if none runs, load the model."""
    from node.commands.agent_client import find_server
    from node.commands.configuration import read_settings
    from node.commands.run import run

    wanted = run.Conversation(model, " ".join(text or ()), system, yes)
    if url is None:
        run.run(read_settings({"home": home}), wanted)
    else:
        run.run_at(find_server(home, url, token, is_spare=is_spare(context, "token")), wanted)


@models_app.command()
def search(
    words: Annotated[list[str], typer.Argument(metavar="WORDS", help="Words of its name.")],
    limit: Annotated[int, typer.Option(min=1, max=100, help="Most models to show.")] = 20,
    token: HubToken = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Search the Hugging Face hub for MLX models, and show which fit into this machine."""
    from node.commands.configuration import need_extra

    need_extra()
    from node.commands.hub.search import search as run

    run(home, " ".join(words), limit=limit, token=token, as_json=as_json)


@models_app.command("import")
def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE.gguf")],
    name: Annotated[str, typer.Option(help="The model's name on this node.")],
    dtype: Annotated[
        Any,
        kind_option(
            one_of("float32", "bfloat16", "float16"),
            "--dtype",
            "Type of the weights. Default: what is fastest here.",
        ),
    ] = None,
    keep_quantized: Annotated[
        bool, typer.Option("--keep-quantized", help="Keep 4-, 5- and 8-bit blocks as they are.")
    ] = False,
    home: Home = None,
) -> None:
    """Import a GGUF file as a model."""
    from node.commands.convert import Import, import_model

    import_model(home, Import(file, name, dtype, keep_quantized))


@models_app.command()
def models(home: Home = None, as_json: Json = False) -> None:
    """List the models on disk."""
    from node.commands.models import list_models

    list_models(home, as_json=as_json)


@models_app.command()
def rm(
    name: Annotated[str, typer.Argument()],
    yes: Yes = False,
    home: Home = None,
) -> None:
    """Delete a model from disk."""
    from node.commands.models import remove_model

    remove_model(home, name, yes=yes)


@models_app.command()
def ps(
    context: typer.Context,
    url: Url = None,
    token: Token = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the loaded models of the running agent: memory, requests, and how long they stay."""
    from node.commands.agent_client import find_server
    from node.commands.residency.ps import show_loaded

    server = find_server(home, url, token, is_spare=is_spare(context, "token"))
    show_loaded(server, as_json=as_json)


@models_app.command()
def stop(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Its name, or a short form that fits no other.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until its requests have ended.")
    ] = False,
    url: Url = None,
    token: Token = None,
    home: Home = None,
) -> None:
    """Unload a model of the running agent."""
    from node.commands.agent_client import find_server
    from node.commands.residency.stop import stop_model

    server = find_server(home, url, token, is_spare=is_spare(context, "token"))
    stop_model(server, model, wait=wait)
