"""Options that several verbs of `router` have, and those of `explain` and `simulate`."""

from pathlib import Path
from typing import Annotated

import typer

from serving.setting_kinds import PATH, PORT
from serving.terminal.setting_options import kind_option

Router = Annotated[
    str | None,
    typer.Option(
        "--router",
        metavar="URL",
        envvar="MLX_FLEET_ROUTER_URL",
        help="The router's address; that of this machine's router if not given.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns, however narrow the window.")]

PairingCode = Annotated[
    str | None,
    typer.Option(
        "--code", help="The one-time code that `node-agent pair` shows; - reads it from input."
    ),
]
NodeHome = Annotated[
    Path | None,
    kind_option(
        *(PATH, "--node-home", "The node agent's folder: token, node id, models."),
        metavar="FOLDER",
        envvar="MLX_FLEET_NODE_HOME",
    ),
]
NodePort = Annotated[
    int | None,
    kind_option(
        *(PORT, "--node-port", "The node agent's port; 0 selects a free one. Default: 8801."),
        envvar="MLX_FLEET_NODE_PORT",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(metavar="ENGINE", help="The node agent's engine: text or scripted."),
]

ServerKind = Annotated[
    str, typer.Option(help="agent, or openai for another OpenAI-compatible server.")
]
WakeMac = Annotated[
    str | None, typer.Option(metavar="MAC", help="Requests may wake it, at this MAC address.")
]
MaxRows = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Requests that a server of kind openai serves at once; 32 if not given. "
        "More wait in the router.",
    ),
]
ServerModels = Annotated[
    list[str] | None,
    typer.Option(
        help="Model of a server of kind openai that requests may go to; all that it lists if not "
        "given. Repeat for more.",
    ),
]
Paid = Annotated[
    bool,
    typer.Option("--paid", help="A server of kind openai that costs money: only aliases use it."),
]
PriceInput = Annotated[
    float | None, typer.Option(min=0, help="Price of a million prompt tokens, with --paid.")
]
PriceOutput = Annotated[
    float | None, typer.Option(min=0, help="Price of a million completion tokens, with --paid.")
]
PriceCached = Annotated[
    float | None,
    typer.Option(
        min=0, help="Price of a million cached prompt tokens; as --price-input if not given."
    ),
]

RequestFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="REQUEST.json", help="A request's body; - reads it from standard input."
    ),
]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id", metavar="ID", help="Id of an earlier request: any that its response had."
    ),
]
RequestPath = Annotated[
    str | None,
    typer.Option(
        "--path", metavar="PATH", help="Path of the request; /v1/chat/completions if not given."
    ),
]
Session = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID",
        help="Its session, as in the header x-session-id; only sessions of the admin key.",
    ),
]

Trace = Annotated[
    Path,
    typer.Argument(metavar="TRACE", help="Requests as lines of JSON: FILE.jsonl or FILE.jsonl.gz"),
]
FleetFile = Annotated[
    Path | None, typer.Option("--fleet", metavar="FILE.toml", help="Description of the fleet.")
]
Nodes = Annotated[
    int | None,
    typer.Option(min=1, max=256, metavar="N", help="A fleet of N equal Macs; 4 if not given."),
]
Policy = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Only this one: ours, round_robin, least_in_flight, session_pin, text_tree, oracle.",
    ),
]
Clones = Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Copies of each session.")]
GapS = Annotated[
    float | None,
    typer.Option(
        min=0, max=86_400, metavar="S", help="Seconds between the starts of two sessions; 20."
    ),
]
Seed = Annotated[
    int, typer.Option(metavar="N", help="Seed for the order and the times of the starts.")
]
BlockTokens = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Tokens of one of the trace's hash_ids, if not inferred."
    ),
]
