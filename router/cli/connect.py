"""`router connect`: arguments only."""

from typing import Annotated

import typer

from router.cli.verbs import admin
from router.commands.options import Router

Name = Annotated[
    str,
    typer.Argument(
        metavar="CLIENT",
        help="claude-code, codex, opencode, cline, continue, aider, llm, open-webui, "
        "openai-python or langchain.",
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Model or alias; if not given, the alias with the client's name, or the only one.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The router's address for the client, if it is on another machine.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key", metavar="KEY", help="Use this key and make none; - reads it from standard input."
    ),
]
KeyName = Annotated[
    str | None,
    typer.Option("--name", help="Name of the new key; CLIENT@MACHINE if not given."),
]
RotateKey = Annotated[
    bool,
    typer.Option(
        "--rotate-key",
        help="If a key of that name exists, replace its secret; the old one ends at once.",
    ),
]
External = Annotated[
    bool, typer.Option("--external", help="The new key may use third-party servers as well.")
]
Write = Annotated[
    bool, typer.Option("--write", help="Write the client's files, and show what changes in them.")
]


def connect(
    client: Name,
    model: Model = None,
    url: Url = None,
    key: Key = None,
    name: KeyName = None,
    rotate_key: RotateKey = False,
    external: External = False,
    write: Write = False,
    router: Router = None,
) -> None:
    """Show or write the settings by which a client uses the fleet, with a key made for it."""
    from router.commands.connect import run as command
    from router.commands.nodes import read_token

    chosen = command.ConnectOptions(
        client=client,
        model=model,
        url=url,
        key=read_token(key),
        name=name,
        rotate_key=rotate_key,
        external=external,
        write=write,
    )
    command.run(admin(router), chosen)
