"""Lines for the person who adds this agent to a router.

The token and the code are printed to a terminal only: other output ends up in a file or a log.
"""

import shlex
import sys

from node.commands.own_name import own_ipv4, own_name
from node.protocol.pairing import CODE_S
from node.server.pairing_codes import PairingDesk
from node.settings import Settings, default_home
from serving.http.listening import is_unspecified
from serving.own_machine import url_at
from serving.terminal.output import put


def announce_token(settings: Settings, port: int, token: str) -> None:
    """Prints how to add an agent that listens on loopback to a router of its machine."""
    shown = token if sys.stdout.isatty() else "TOKEN"
    put("This is the agent's first start. To add it to a router on this machine, run:")
    put(f"  router add-node {url_at(settings.host, port)} --token {shown}")
    if shown != token:
        put(f"`{own_command('token', settings)}` prints the token on this machine.")


def announce_pairing(settings: Settings, port: int, desk: PairingDesk) -> None:
    """Prints how to pair an agent that other machines reach, as long as no router is paired."""
    if desk.pairings.list():
        return
    if not sys.stdout.isatty():
        put(
            f"No router is paired with this agent yet; `{own_command('pair', settings)}` on this "
            "machine shows the code for one."
        )
        return
    put("No router is paired with this agent yet. To add it to one, run there:")
    put_pairing(settings.host, port, desk.codes.renew().text())
    put(f"`{own_command('pair', settings)}` on this machine shows another code.")


def put_pairing(host: str, port: int, code: str) -> None:
    """Prints the command for the router."""
    is_open = is_unspecified(host)
    put(
        f"  router add-node {url_at(own_name() if is_open else host, port, tls=True)} --code {code}"
    )
    put(f"The code is valid for {CODE_S / 60:g} minutes, and for one router.")
    address = own_ipv4() if is_open else None
    if address is not None:
        by_address = url_at(address, port, tls=True)
        put(f"If that name does not resolve, use its present address: {by_address}.")


def own_command(verb: str, settings: Settings) -> str:
    """A command for this agent."""
    is_usual = settings.home == default_home()
    home = "" if is_usual else f" --home {shlex.quote(str(settings.home))}"
    return f"node-agent {verb}{home}"
