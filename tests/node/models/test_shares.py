"""Tickets for peers."""

from pathlib import Path

import pytest

from node.errors import BadRequest, NodeError, ShuttingDown, UnknownPath, WrongTicket
from node.models.model_files import write_name
from node.models.shares import TICKET_S, Shares
from node.models.store import ModelEntry, ModelStore, read_entry
from tests.fakes import FakeClock
from tests.node.model_folders import make_model


def entry_in(folder: Path) -> ModelEntry:
    return read_entry(folder, "org/tiny")


async def test_a_ticket_opens_the_files_of_its_model_only(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "org--tiny")
    write_name(folder, "org/tiny", "hub:org/tiny@c0ffee")
    shares = Shares(ModelStore(tmp_path))
    share = await shares.share(entry_in(folder))
    assert share.source == "hub:org/tiny@c0ffee"
    assert [file.path for file in share.files] == ["config.json", "model.safetensors"]
    assert shares.file(share.ticket, "org/tiny", "config.json") == folder / "config.json"
    for ticket, model in (("", "org/tiny"), ("other", "org/tiny"), (share.ticket, "other")):
        with pytest.raises(WrongTicket):
            shares.file(ticket, model, "config.json")
    for path in ("../secret", "mlx-fleet.json", "none.json", str(folder / "config.json")):
        with pytest.raises(UnknownPath):
            shares.file(share.ticket, "org/tiny", path)
    (folder / "config.json").unlink()
    with pytest.raises(UnknownPath):
        shares.file(share.ticket, "org/tiny", "config.json")


async def test_a_ticket_expires_after_its_last_use(tmp_path: Path) -> None:
    clock = FakeClock()
    shares = Shares(ModelStore(tmp_path), clock)
    entry = entry_in(make_model(tmp_path / "m"))
    first, second = await shares.share(entry), await shares.share(entry)
    assert first.ticket != second.ticket
    clock.advance(TICKET_S - 1)
    shares.file(first.ticket, entry.name, "config.json")
    clock.advance(TICKET_S - 1)
    shares.file(first.ticket, entry.name, "config.json")
    with pytest.raises(WrongTicket):
        shares.file(second.ticket, entry.name, "config.json")
    clock.advance(TICKET_S)
    with pytest.raises(WrongTicket):
        shares.file(first.ticket, entry.name, "config.json")


async def test_what_cannot_be_copied_is_an_error(tmp_path: Path) -> None:
    shares = Shares(ModelStore(tmp_path))
    scripted = ModelEntry("scripted", Path(), 0, None, 0)
    with pytest.raises(BadRequest, match="no files"):
        await shares.share(scripted)
    torn = entry_in(make_model(tmp_path / "m"))
    (torn.folder / "model.safetensors").unlink()
    (torn.folder / "model.safetensors").mkdir()
    (tmp_path / ".manifests").touch()
    with pytest.raises(NodeError, match="cannot be read"):
        await shares.share(torn)


async def test_the_agents_end_stops_the_hashing_and_voids_the_tickets(tmp_path: Path) -> None:
    shares = Shares(ModelStore(tmp_path))
    entry = entry_in(make_model(tmp_path / "m"))
    other = entry_in(make_model(tmp_path / "other"))
    ticket = (await shares.share(entry)).ticket
    shares.close()
    with pytest.raises(WrongTicket):
        shares.file(ticket, entry.name, "config.json")
    with pytest.raises(ShuttingDown):
        await shares.share(other)
