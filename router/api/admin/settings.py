"""`/admin/reload`: reads the settings again."""

import asyncio
from dataclasses import asdict

from router.api.admin.gate import CurrentAdmin
from router.api.admin.views import ChangeRow, ReloadRow
from router.errors import BadRequest
from serving.live_settings import Change


async def reload(admin: CurrentAdmin) -> ReloadRow:
    """Reads options, variables and file again, and applies what can change while the router runs;
    if anything is wrong with them, nothing is changed."""
    live = admin.core.settings
    try:
        wanted = await asyncio.to_thread(live.read)
    except live.errors as error:
        raise BadRequest(str(error)) from error
    done = live.change_to(wanted)
    if done.applied:
        names = ", ".join(each.option for each in done.applied)
        await admin.note("settings.reload", "router", names)
    return ReloadRow(applied=_rows(done.applied), needs_restart=_rows(done.needs_restart))


def _rows(changes: tuple[Change, ...]) -> list[ChangeRow]:
    return [ChangeRow(**asdict(each)) for each in changes]
