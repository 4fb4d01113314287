"""`router keys …` and `router teams …`: arguments only."""

from typing import Annotated

import typer

from router.cli.arguments import KeyName, TeamName
from router.cli.verbs import admin, group
from router.commands.options import AsJson, Router, Wide

keys_app = group("API keys: who may use the fleet, which models, and how much.")
teams_app = group("Teams: keys that share limits.")

MOST = "N|none"
RequestsPerMinute = Annotated[
    str | None, typer.Option("--requests-per-minute", metavar=MOST, help="Most requests a minute.")
]
TokensPerMinute = Annotated[
    str | None,
    typer.Option(
        "--tokens-per-minute", metavar=MOST, help="Most tokens a minute, such as 50k: of prompts "
        "and responses.",
    ),
]  # fmt: skip
TokensPerDay = Annotated[
    str | None,
    typer.Option("--tokens-per-day", metavar=MOST, help="Most tokens a day (UTC), such as 2M."),
]
ConcurrentRequests = Annotated[
    str | None,
    typer.Option(
        "--concurrent-requests", metavar=MOST, help="Most requests that wait or run at once."
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="PATTERN",
        help="Model or alias that it may use, or a pattern such as qwen*. Repeat for more; all, "
        "if not given.",
    ),
]
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        help="inference and external (the default), admin, or metrics. Without external its "
        "requests stay on the fleet's own nodes.",
    ),
]
ExpiresDays = Annotated[
    float | None,
    typer.Option("--expires-days", min=0.001, max=3650, metavar="N", help="Never, if not given."),
]


@keys_app.command("create")
def keys_create(
    name: str,
    scope: Scopes = None,
    team: Annotated[
        str | None, typer.Option(metavar="NAME", help="Team whose limits it shares.")
    ] = None,
    model: Models = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    tokens_per_day: TokensPerDay = None,
    concurrent_requests: ConcurrentRequests = None,
    expires_days: ExpiresDays = None,
    priority: Annotated[
        str, typer.Option(help="Best class of its requests: interactive, default or batch.")
    ] = "default",
    isolate: Annotated[
        bool, typer.Option("--isolate", help="Share no cached prefixes with other keys.")
    ] = False,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Create a key; it is printed only once."""
    from router.commands.access import key_changes, keys

    limits = key_changes.read_limits(
        requests_per_minute, tokens_per_minute, tokens_per_day, concurrent_requests
    )
    body = {
        "name": name,
        "scopes": key_changes.split(scope or ["inference", "external"]),
        "team": team,
        "models": model,
        "limits": limits,
        "expires_in_days": expires_days,
        "priority": priority,
        "isolate": isolate,
    }
    client = admin(router)
    keys.create(client, body, as_json=as_json)


@keys_app.command("list")
def keys_list(router: Router = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """List the keys, revoked ones too."""
    from router.commands.access import keys

    client = admin(router)
    keys.show(client, as_json=as_json, wide=wide)


@keys_app.command("show")
def keys_show(name: KeyName, router: Router = None, as_json: AsJson = False) -> None:
    """Show one key, by name or id: what it may use, and what is left of its limits."""
    from router.commands.access import keys

    client = admin(router)
    keys.show_one(client, name, as_json=as_json)


@keys_app.command("update")
def keys_update(
    name: KeyName,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", help="All its scopes from now on.")
    ] = None,
    team: Annotated[
        str | None, typer.Option(metavar="NAME|none", help="Team whose limits it shares.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="PATTERN|all",
            help="All models and aliases that it may use from now on.",
        ),
    ] = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    tokens_per_day: TokensPerDay = None,
    concurrent_requests: ConcurrentRequests = None,
    expires_days: Annotated[
        str | None,
        typer.Option("--expires-days", metavar="N|never", help="Days from now."),
    ] = None,
    priority: Annotated[
        str | None, typer.Option(help="Best class of its requests: interactive, default or batch.")
    ] = None,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Change a key, by name or id; what is not given stays."""
    from router.commands.access import key_changes

    limits = key_changes.read_limits(
        requests_per_minute, tokens_per_minute, tokens_per_day, concurrent_requests
    )
    body = key_changes.read_change(scope, team, model, limits, expires_days, priority)
    client = admin(router)
    key_changes.update(client, name, body, as_json=as_json)


@keys_app.command("rotate")
def keys_rotate(
    name: KeyName,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="How long the old secret still works: 30m, 24h, 7d. Not at all, "
            "if not given.",
        ),
    ] = None,
    router: Router = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Give a key, by name or id, a new secret; name, limits and usage stay."""
    from router.commands.access import key_changes

    client = admin(router)
    key_changes.rotate(client, name, grace, as_json=as_json)


@keys_app.command("revoke")
def keys_revoke(name: KeyName, router: Router = None) -> None:
    """Revoke a key, by name or id, at once."""
    from router.commands.access import keys

    client = admin(router)
    keys.revoke(client, name)


# With this setting a negative amount is an invalid amount, and not an unknown option.
@keys_app.command("set-budget", context_settings={"ignore_unknown_options": True})
def keys_set_budget(
    name: KeyName,
    amount: Annotated[
        str, typer.Argument(help="Amount a month, in the currency of the prices, or none.")
    ],
    router: Router = None,
) -> None:
    """Let a key use paid servers, up to an amount a calendar month (UTC)."""
    from router.commands.access import keys

    budget = keys.read_amount(amount)
    client = admin(router)
    keys.set_budget(client, name, budget)


# --- teams ---


@teams_app.command("create")
def teams_create(
    name: str,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    tokens_per_day: TokensPerDay = None,
    concurrent_requests: ConcurrentRequests = None,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Create a team; its limits bound the sum of its keys."""
    from router.commands.access import key_changes, teams

    limits = key_changes.read_limits(
        requests_per_minute, tokens_per_minute, tokens_per_day, concurrent_requests
    )
    client = admin(router)
    teams.create(client, name, limits, as_json=as_json)


@teams_app.command("list")
def teams_list(router: Router = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """List the teams, their keys, and what is left of their limits."""
    from router.commands.access import teams

    client = admin(router)
    teams.show(client, as_json=as_json, wide=wide)


@teams_app.command("update")
def teams_update(
    name: TeamName,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    tokens_per_day: TokensPerDay = None,
    concurrent_requests: ConcurrentRequests = None,
    router: Router = None,
    as_json: AsJson = False,
) -> None:
    """Change a team's limits; what is not given stays."""
    from router.commands.access import key_changes, teams

    limits = key_changes.read_limits(
        requests_per_minute, tokens_per_minute, tokens_per_day, concurrent_requests
    )
    client = admin(router)
    teams.update(client, name, limits, as_json=as_json)


@teams_app.command("delete")
def teams_delete(name: TeamName, router: Router = None) -> None:
    """Delete a team that has no valid keys; usage still names it."""
    from router.commands.access import teams

    client = admin(router)
    teams.delete(client, name)
