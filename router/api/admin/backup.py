"""`/admin/backup`: a copy of the registry, made while it is in use."""

import asyncio
import os
from typing import BinaryIO

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.api.admin.gate import CurrentAdmin

_PIECE_BYTES = 256 * 1024


class OpenFile(Response):
    """Sends the rest of an open file, and closes it."""

    media_type = "application/vnd.sqlite3"

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(headers={"content-length": str(os.fstat(file.fileno()).st_size)})
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        with self._file:
            await send(head)
            while piece := await asyncio.to_thread(self._file.read, _PIECE_BYTES):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body"})


async def take_backup(admin: CurrentAdmin) -> Response:
    """Sends a backup of the registry: its database at this moment, as one file."""
    await admin.note("registry.backup", "registry", "")
    return OpenFile(await admin.core.backups.take())
