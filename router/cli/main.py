"""The `router` command: arguments only. Each verb imports its own module, so that `--help` stays
fast."""

from typing import Annotated, Any

import typer

from node.protocol.paths import DEFAULT_PORT
from router.cli import config, home, service
from router.cli.aliases import alias_app
from router.cli.arguments import Model, Node, NodeName
from router.cli.cache import cache_app
from router.cli.connect import connect
from router.cli.keys import keys_app, teams_app
from router.cli.lifecycle import add_to
from router.cli.models import models_app
from router.cli.reports import add_reports
from router.cli.status import add_status
from router.cli.upgrade import add_upgrade
from router.cli.verbs import RouterVerbs, admin, group
from router.commands import options
from router.commands.options import AsJson, Router, Wide
from router.settings import Settings, default_home, read_settings, settings_from, sources
from serving.terminal.cli_version import version_option
from serving.terminal.setting_options import with_settings

app = group(
    "Local language models on a handful of Macs, as one OpenAI and Anthropic endpoint.",
    cls=RouterVerbs,
)
app.add_typer(models_app, name="models")
app.add_typer(cache_app, name="cache")
app.add_typer(alias_app, name="alias")
app.add_typer(keys_app, name="keys")
app.add_typer(teams_app, name="teams")


def main() -> None:
    app(prog_name="router")


@app.callback()
def _options(
    version: Annotated[bool, version_option("router")] = False,
) -> None:
    """Local language models on a handful of Macs, as one OpenAI and Anthropic endpoint."""


# --- processes ---


@app.command()
@with_settings(Settings)
def serve(**given: Any) -> None:
    """Serve the OpenAI endpoint and the admin API. Options override MLX_FLEET_ROUTER_…"""
    from router.commands import serve as command

    read = sources(given)
    command.run(settings_from(read.gather()), read)


@app.command()
@with_settings(Settings, only=("home", "port"), without=("config",))
def up(
    *,
    node_home: options.NodeHome = None,
    node_port: options.NodePort = None,
    engine: options.Engine = None,
    once: Annotated[
        str | None, typer.Option(metavar="PROMPT", help="Answer this prompt, then stop everything.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model for --once.")] = None,
    **given: Any,
) -> None:
    """Start a whole fleet on this machine: router, node agent, key. Ctrl-C stops it."""
    from router.commands import fleet_of_one
    from router.commands import up as command

    if model is not None and once is None:
        raise typer.BadParameter("--model is that of --once; without it, each request names one")
    settings = read_settings(given)
    plan = fleet_of_one.Plan(
        home=settings.home,
        node_home=node_home or default_home().parent / "node",
        port=settings.port,
        node_port=DEFAULT_PORT if node_port is None else node_port,
        engine=engine,
        quiet=once is not None,
    )
    command.run(plan, once, model)


home.add_to(app)
app.command()(connect)
config.add_to(app)
service.add_to(app)


# --- nodes and models ---


@app.command("add-node")
def add_node(
    url: Annotated[
        str,
        typer.Argument(
            metavar="ADDRESS",
            help="Where the node is: mac-studio.local, a name of `router discover`, "
            "http://HOST:PORT.",
        ),
    ],
    code: options.PairingCode = None,
    name: Annotated[str | None, typer.Option(help="Its name; the host name if not given.")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="MLX_FLEET_NODE_TOKEN",
            show_envvar=True,
            help="The token that `node-agent token` shows; - reads it from standard input.",
        ),
    ] = None,
    kind: options.ServerKind = "agent",
    allow_plain_http: Annotated[
        bool,
        typer.Option("--allow-plain-http", help="Plain HTTP to another machine: it shows keys."),
    ] = False,
    wake_mac: options.WakeMac = None,
    max_rows: options.MaxRows = None,
    model: options.ServerModels = None,
    paid: options.Paid = False,
    price_input: options.PriceInput = None,
    price_output: options.PriceOutput = None,
    price_cached: options.PriceCached = None,
    router: Router = None,
) -> None:
    """Add a node to the fleet."""
    from router.commands import nodes

    body = {
        "url": url,
        "name": name,
        "token": "" if code else nodes.read_token(token),
        "code": nodes.read_code(code),
        "kind": kind,
        "allow_plain_http": allow_plain_http,
        "max_rows": max_rows,
        "wake_mac": wake_mac,
        "models": model,
        "prices": nodes.read_prices(price_input, price_output, price_cached, paid=paid),
    }
    nodes.add(admin(router), body)


@app.command()
def discover(router: Router = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """List the agents that announce themselves in the router's local network."""
    from router.commands import nodes

    client = admin(router)
    nodes.discover(client, as_json=as_json, wide=wide)


@app.command()
def accept(
    node: Annotated[str, typer.Argument(help="A server of kind openai.")],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    router: Router = None,
) -> None:
    """Accept further models of a server of kind openai, so that requests may go to them."""
    from router.commands import nodes

    client = admin(router)
    nodes.accept(client, node, models)


@app.command("remove-node")
def remove_node(name: NodeName, router: Router = None) -> None:
    """Remove a node; its open requests continue."""
    from router.commands import nodes

    client = admin(router)
    nodes.remove(client, name)


@app.command("rotate-node")
def rotate_node(node: NodeName, code: options.PairingCode = None, router: Router = None) -> None:
    """Give a paired node a new secret, or pair it again with a new code."""
    from router.commands import nodes

    client = admin(router)
    nodes.rotate(client, node, nodes.read_code(code))


@app.command()
def nodes(router: Router = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """List the nodes and their state."""
    from router.commands import nodes as command

    client = admin(router)
    command.show(client, as_json=as_json, wide=wide)


@app.command()
def doctor(router: Router = None, as_json: AsJson = False) -> None:
    """Check the router, contact every node, and explain what is wrong with each."""
    from router.commands import doctor as command

    client = admin(router)
    if not command.run(client, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def load(model: Model, node: Node = None, router: Router = None) -> None:
    """Load a model, on the node with most free memory if none is named."""
    from router.commands import models as command

    client = admin(router)
    command.load(client, model, node)


@app.command()
def unload(model: Model, node: Node = None, router: Router = None) -> None:
    """Unload a model, on every node if none is named."""
    from router.commands import models as command

    client = admin(router)
    command.unload(client, model, node)


add_to(app)


# --- use and reports ---


@app.command()
def chat(
    model: Model,
    prompt: Annotated[
        str | None,
        typer.Argument(help="If not given: a conversation, or the text on standard input."),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system prompt.")] = None,
    router: Router = None,
) -> None:
    """Chat with a model through the router."""
    from router.commands import chat as command
    from router.commands.chat_request import Chat
    from router.commands.client import find_router

    with Chat(find_router(router)) as talk:
        command.run(talk, model, prompt, system)


add_status(app)
add_upgrade(app)
add_reports(app)


@app.command()
def explain(
    request: options.RequestFile = None,
    request_id: options.RequestId = None,
    path: options.RequestPath = None,
    session: options.Session = None,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Show where a request would go, or went, and what it costs on each node."""
    from router.commands import explain as command

    client = admin(router)
    chosen = command.ExplainOptions(request, request_id, path, session)
    command.run(client, chosen, as_json=as_json)


@app.command()
def simulate(
    trace: options.Trace,
    fleet: options.FleetFile = None,
    nodes: options.Nodes = None,
    policy: options.Policy = "all",
    clones: options.Clones = 1,
    gap_s: options.GapS = None,
    seed: options.Seed = 1,
    block_tokens: options.BlockTokens = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Play a trace against the scheduler and other policies, in virtual time."""
    from router.commands import simulate as command

    chosen = command.SimulateOptions(trace, fleet, nodes, policy, clones, gap_s, seed, block_tokens)
    command.run(chosen, as_json=as_json, wide=wide)


if __name__ == "__main__":
    main()
