"""The keys of a first start, and starts that are none."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from registry import keys
from registry.db import Registry
from registry.migrate import open_migrated
from router import first_keys
from router.app import open_core
from router.auth import SCOPE_ADMIN, digest
from router.errors import StartError
from router.first_keys import make_first_keys, write_secret
from router.settings import Settings


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def digests(registry: Registry) -> set[str]:
    async with registry.read() as session:
        return {record.digest for record in await keys.list_all(session)}


def test_a_secret_file_is_private_and_replaces_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a.key"
    file.write_text("old")
    file.chmod(0o644)
    write_secret(file, "new")
    assert (file.read_text(), mode(file)) == ("new\n", 0o600)


@pytest.mark.parametrize("left", ["admin.key", "first.key"])
async def test_an_empty_registry_beside_keys_is_no_new_fleet(tmp_path: Path, left: str) -> None:
    settings = Settings(home=tmp_path)
    async with open_core(settings):
        pass
    (tmp_path / "registry.db").unlink()
    for file in (settings.admin_key_file, settings.first_key_file):
        if file.name != left:
            file.unlink()
    key = (tmp_path / left).read_text()
    for _ in range(2):
        with pytest.raises(StartError) as refused:
            async with open_core(settings):
                raise AssertionError("it started")
        message = str(refused.value)
        assert f"The registry {tmp_path}/registry.db has no keys, but {tmp_path}/{left}" in message
        assert message.endswith(f"move {left} away.")
        assert (tmp_path / left).read_text() == key
        assert not list(tmp_path.glob("*.partial"))
    (tmp_path / left).unlink()
    async with open_core(settings) as core:
        new = settings.admin_key_file.read_text().strip()
        assert core.keys.check(new, SCOPE_ADMIN).name == "admin"


async def test_a_first_start_that_is_cut_before_its_registry_has_the_keys_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path)
    registry = await open_migrated(settings.registry)
    with monkeypatch.context() as patch:
        patch.setattr(keys, "add", None)
        with pytest.raises(TypeError):
            await make_first_keys(registry, settings)
    lost = {file.read_text() for file in tmp_path.glob("*.partial")}
    assert len(lost) == 2 and not settings.admin_key_file.exists()
    await make_first_keys(registry, settings)
    made = {file.read_text() for file in (settings.admin_key_file, settings.first_key_file)}
    assert not made & lost and not list(tmp_path.glob("*.partial"))
    assert {digest(key.strip()) for key in made} == await digests(registry)
    await registry.close()


async def test_a_first_start_that_is_cut_behind_that_gives_out_its_keys_at_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path)
    registry = await open_migrated(settings.registry)
    with monkeypatch.context() as patch:
        patch.setattr(first_keys, "_finish", None)
        with pytest.raises(TypeError):
            await make_first_keys(registry, settings)
    waiting = {file.stem: file.read_text() for file in tmp_path.glob("*.partial")}
    await make_first_keys(registry, settings)
    assert waiting == {
        file.stem: file.read_text() for file in (settings.admin_key_file, settings.first_key_file)
    }
    assert {digest(key.strip()) for key in waiting.values()} == await digests(registry)
    assert mode(settings.admin_key_file) == 0o600
    await make_first_keys(registry, settings)
    await registry.close()


async def test_what_is_left_beside_a_registry_s_keys_replaces_none_of_them(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    async with open_core(settings):
        key = settings.admin_key_file.read_text()
    (tmp_path / "admin.partial").write_text("mlxf-other\n")
    async with open_core(settings):
        assert settings.admin_key_file.read_text() == key
    assert not list(tmp_path.glob("*.partial"))
