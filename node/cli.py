"""The `node-agent` command. Exit codes: 0 done, 1 failed, 2 cannot start or wrong usage, 130 ended
by Ctrl-C.

Every failure is one line on standard error.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli_models import models_app
from node.cli_options import Home, Json, Token, Url, Yes, is_spare
from node.errors import NodeError, StartError
from node.settings import Settings, sources
from serving.errors import CannotStart
from serving.services.cli import service_group
from serving.terminal.cli_version import version_option
from serving.terminal.output import put, shown
from serving.terminal.setting_options import with_settings
from serving.terminal.verbs import Verbs

if TYPE_CHECKING:
    from serving.services.program import ServedProgram

NAME = "node-agent"

app = typer.Typer(
    name=NAME,
    cls=Verbs,
    help="The node agent of mlx-fleet: serves language models on this Mac.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

cache = typer.Typer(help="The prefix cache.", no_args_is_help=True)
app.add_typer(cache, name="cache")
app.add_typer(models_app)
config = typer.Typer(help="The file with the agent's settings.", no_args_is_help=True)
app.add_typer(config, name="config")


@app.callback()
def _program(
    version: Annotated[bool, version_option(NAME)] = False,
) -> None:
    pass


@app.command()
@with_settings(Settings)
def serve(**given: Any) -> None:
    """Serve the models of this machine."""
    from node.commands.configuration import valid_settings
    from node.commands.serve import serve as run

    read = sources(_options(given))
    run(valid_settings(read), read)


def _settings(given: dict[str, Any]) -> Settings:
    from node.commands.configuration import read_settings

    return read_settings(_options(given))


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command, with lists as settings have them."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }


def _service(given: Mapping[str, Any]) -> "ServedProgram":
    from serving.services.program import ServedProgram

    read = sources(_options(given))

    def check() -> int:
        from node.commands.serve import checked_stop_s

        return checked_stop_s(read)

    return ServedProgram(
        NAME, read, check, "`node-agent pair` shows the code with which a router is paired."
    )


app.add_typer(service_group(Settings, _service), name="service")


@config.command()
@with_settings(Settings, only=("home",))
def init(
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    **given: Any,
) -> None:
    """Write a file with every setting, its meaning and its default."""
    from node.commands import config as command

    command.init(sources(_options(given)), force=force)


@config.command()
@with_settings(Settings, only=("home",))
def check(**given: Any) -> None:
    """Name every mistake in the file and in the environment."""
    from node.commands import config as command

    if not command.check(sources(_options(given))):
        raise typer.Exit(1)


@config.command()
@with_settings(Settings)
def show(*, as_json: Json = False, **given: Any) -> None:
    """Show each setting, and where it is set."""
    from node.commands import config as command

    if not command.show(sources(_options(given)), as_json=as_json):
        raise typer.Exit(1)


@app.command("token")
def show_token(home: Home = None) -> None:
    """Show the agent's token, for a router and other programs on its machine."""
    from node.commands.token import show

    show(home)


@app.command("pair")
def show_code(home: Home = None, as_json: Json = False) -> None:
    """Show a new one-time code of the running agent, with which a router is paired."""
    from node.commands.pair import pair

    pair(home, as_json=as_json)


@app.command()
def unpair(
    router: Annotated[
        str | None, typer.Argument(metavar="[ROUTER]", help="A router by its name or id.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="End the pairing with all.")] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """List the routers that are paired with the running agent, or end the pairing with one."""
    from node.commands.pair import unpair as run

    if router is not None and everyone:
        raise typer.BadParameter("name one router, or give --all")
    run(home, router, all_of_them=everyone, as_json=as_json)


@app.command()
@with_settings(Settings, without=("engine", "script", "exit_on_stdin_eof"))
def doctor(
    *,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Also test this machine for about five minutes, and write a report."
        ),
    ] = False,
    soak_minutes: Annotated[
        float | None,
        typer.Option(
            "--soak",
            metavar="MINUTES",
            min=0.01,
            max=1440,
            help="With --full: at the end, the load under which Macs have panicked. Save your work "
            "first.",
        ),
    ] = None,
    report_folder: Annotated[
        Path, typer.Option("--report", metavar="FOLDER", help="Folder for the report of --full.")
    ] = Path(),
    hashes: Annotated[
        bool,
        typer.Option(
            "--hashes", help="Also read all models' files and compare them with recorded hashes."
        ),
    ] = False,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Check what the agent needs from this machine to serve with the same options."""
    settings = _settings(given)
    if full and hashes:
        raise typer.BadParameter("--hashes goes without --full")
    if full:
        is_fine = _check_fully(settings, report_folder, soak_minutes, as_json)
    elif soak_minutes is not None or report_folder != Path():
        raise typer.BadParameter("--soak and --report go with --full")
    else:
        is_fine = _check(settings, hashes, as_json)
    if not is_fine:
        raise typer.Exit(1)


def _check_fully(settings: Settings, out: Path, soak_minutes: float | None, as_json: bool) -> bool:
    """Imports modules of the node extra, which the base install lacks."""
    from node.commands.mac_check import FullCheckOptions, run_full

    return run_full(FullCheckOptions(settings, out, soak_minutes), as_json=as_json)


def _check(settings: Settings, hashes: bool, as_json: bool) -> bool:
    from node.commands.doctor import run_doctor

    return run_doctor(settings, hashes=hashes, as_json=as_json)


@app.command()
def warm(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Requests as for /v1/chat/completions or /v1/completions: one JSON object a "
            "line, or a JSON list. A chat may be a system message alone.",
        ),
    ],
    model: Annotated[
        str | None, typer.Option(help="Use this model instead of those in FILE.")
    ] = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Prefill the prompts of FILE and keep them in the cache of the running agent."""
    from node.commands.agent_client import find_server
    from node.commands.warm import warm_prompts

    server = find_server(home, url, token, is_spare=is_spare(context, "token"))
    if not warm_prompts(file, model, server, as_json=as_json):
        raise typer.Exit(1)


@cache.command()
def clear(
    context: typer.Context,
    yes: Yes = False,
    model: Annotated[
        str | None, typer.Option(help="Only of this model, which must be loaded.")
    ] = None,
    url: Url = None,
    token: Token = None,
    home: Home = None,
) -> None:
    """Delete all stored KV: that of the running agent, and that on disk."""
    from node.commands.agent_client import find_server
    from node.commands.configuration import need_extra

    need_extra()
    from node.commands.cache import clear_cache

    server = find_server(home, url, token, is_spare=is_spare(context, "token"))
    clear_cache(home, server, model, local=url is None, yes=yes)


@app.command()
def bench(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="The model's name at the server.")],
    url: Annotated[
        str | None, typer.Option(help="Another OpenAI server, if not this machine's agent.")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(envvar="MLX_FLEET_KEY", help="The server's key.", show_envvar=True),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help=("Shorter prompts and responses, for a first impression.")),
    ] = False,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Measure how fast a server responds with MODEL: tokens/s and time to first token of 1 to 16
    streams, a repeated prompt, a long prompt beside running streams, and sessions."""
    from node.commands.agent_client import find_server
    from node.commands.bench import bench as run

    server = find_server(home, url, key, is_spare=is_spare(context, "key"))
    if not run(model, server, quick=quick, as_json=as_json):
        raise typer.Exit(1)


def main(arguments: list[str] | None = None) -> None:
    """Runs the command and exits."""
    sys.exit(_run(arguments))


def _run(arguments: list[str] | None) -> int:
    try:
        code = app(args=arguments, prog_name=NAME, standalone_mode=False)
    except StartError as error:
        return _failed(error.message, 2)
    except CannotStart as error:
        return _failed(str(error), 2)
    except NodeError as error:
        return _failed(error.message, 1)
    except typer.TyperException as error:
        return _failed(error.format_message(), 2)
    except typer.Abort:
        return _failed("Stopped.", 1)
    except OSError as error:
        return _failed(f"{error}.", 1)
    return code if isinstance(code, int) else 0


def _failed(sentence: str, code: int) -> int:
    put(f"{NAME}: {shown(' '.join(sentence.split()))}", err=True)
    return code


if __name__ == "__main__":
    main()
