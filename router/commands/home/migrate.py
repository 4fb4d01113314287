"""`router migrate`: updates the registry to this version, with the router stopped."""

import asyncio

from registry.db import Registry
from registry.errors import RegistryError
from registry.migrate import Migration, migrate
from router.errors import StartError
from router.settings import Settings
from serving.terminal.output import put


def run(settings: Settings) -> None:
    """Migrates and prints the result. Raises `StartError`, also if a router has the registry
    open."""
    try:
        done = asyncio.run(_migrate(settings.registry))
    except RegistryError as error:
        raise StartError(str(error)) from error
    put(sentence(settings.registry, done))


async def _migrate(url: str) -> Migration:
    registry = await Registry.open(url)
    try:
        return await migrate(registry)
    finally:
        await registry.close()


def sentence(registry: str, done: Migration) -> str:
    if done.before == done.after:
        return f"{registry} is at revision {done.after} already."
    return f"{registry}: {done.before or 'empty'} -> {done.after}"
