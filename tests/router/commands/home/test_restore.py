"""`router restore`: the registry, and the key files beside it."""

import asyncio
from pathlib import Path

import pytest

from registry import audit, keys
from registry.backup import back_up
from router.app import open_core
from router.auth import SCOPE_ADMIN, SCOPE_INFERENCE
from router.commands.client import RouterAccess
from router.commands.home import restore
from router.errors import RouterError, StartError
from router.settings import Settings


@pytest.fixture
async def saved(tmp_path: Path) -> Path:
    """A backup of a fleet whose folder is `old`."""
    settings = Settings(tmp_path / "old")
    async with open_core(settings):
        pass
    back_up(Path(settings.registry), tmp_path / "b")
    return tmp_path / "b"


async def test_a_restored_fleet_keeps_its_keys_and_key_files(saved: Path, tmp_path: Path) -> None:
    settings = Settings(tmp_path / "old")
    before = settings.admin_key_file.read_text()
    await restore_in_thread(settings, saved)
    assert settings.admin_key_file.read_text() == before
    async with open_core(settings) as core:
        assert core.keys.check(before.strip(), SCOPE_ADMIN).name == "admin"
        async with core.registry.read() as session:
            (entry,) = await audit.recent(session, 1)
        assert (entry.actor, entry.verb, entry.detail) == (
            "router restore",
            "registry.restore",
            "b",
        )


async def test_a_home_without_key_files_gets_new_keys_and_the_old_stay_valid(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Settings(tmp_path / "old").admin_key_file.read_text().strip()
    settings = Settings(tmp_path / "new")
    await restore_in_thread(settings, saved)
    assert "admin-restored" in capsys.readouterr().out
    async with open_core(settings) as core:
        new = settings.admin_key_file.read_text().strip()
        assert core.keys.check(new, SCOPE_ADMIN).name == "admin-restored"
        assert core.keys.check(old, SCOPE_ADMIN).name == "admin"
        first = settings.first_key_file.read_text().strip()
        assert core.keys.check(first, SCOPE_INFERENCE).name == "first-restored"
        with pytest.raises(RouterError):
            core.keys.check(first, SCOPE_ADMIN)
    assert settings.admin_key_file.stat().st_mode & 0o777 == 0o600
    assert not list(settings.home.glob("*.partial"))


async def test_a_key_file_whose_key_the_backup_has_revoked_gets_a_new_one(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "old")
    async with open_core(settings) as core:
        await core.registry.write(lambda session: keys.revoke(session, "first", 1.0))
    back_up(Path(settings.registry), tmp_path / "b")
    await restore_in_thread(settings, tmp_path / "b")
    async with open_core(settings) as core:
        first = settings.first_key_file.read_text().strip()
        assert core.keys.check(first, SCOPE_INFERENCE).name == "first-restored"


async def test_a_second_restore_makes_a_second_key(saved: Path, tmp_path: Path) -> None:
    settings = Settings(tmp_path / "new")
    await restore_in_thread(settings, saved)
    back_up(Path(settings.registry), tmp_path / "c")
    settings.admin_key_file.unlink()
    await restore_in_thread(settings, tmp_path / "c")
    async with open_core(settings) as core:
        new = settings.admin_key_file.read_text().strip()
        assert core.keys.check(new, SCOPE_ADMIN).name == "admin-restored-2"


def test_a_running_router_keeps_its_registry(router_place: RouterAccess, tmp_path: Path) -> None:
    back_up(router_place.home / "registry.db", tmp_path / "b")
    with pytest.raises(StartError, match=r"in use by process \d+; stop it first"):
        restore.run(Settings(router_place.home), tmp_path / "b")


def test_a_file_that_is_no_backup_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("text")
    with pytest.raises(StartError, match="is not a backup of a registry"):
        restore.run(Settings(tmp_path / "home"), tmp_path / "b")
    with pytest.raises(StartError, match="cannot be used"):
        restore.run(Settings(tmp_path / "b" / "home"), tmp_path / "b")


async def restore_in_thread(settings: Settings, file: Path) -> None:
    """The command has an event loop of its own."""
    await asyncio.to_thread(restore.run, settings, file)
