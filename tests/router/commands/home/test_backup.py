"""`router backup`, with and without a router."""

import json
from pathlib import Path

import httpx
import pytest

from registry.backup import Contents, read_contents
from router.commands.client import AdminClient, CommandFailed, RouterAccess
from router.commands.connection import RouterRequest, RouterResponse
from router.commands.home import backup
from router.commands.home.backup import BackupOptions, contents_text
from router.settings import Settings


def options(
    file: Path, *, force: bool = False, plain: bool = False, of_file: bool = False
) -> BackupOptions:
    return BackupOptions(file, force, plain, of_file)


def away(tmp_path: Path) -> RouterAccess:
    return RouterAccess("http://127.0.0.1:9", tmp_path / "router")


def test_a_running_router_makes_a_backup_of_its_registry(
    router_place: RouterAccess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b"
    backup.run(AdminClient(router_place), Settings(tmp_path), options(file), as_json=False)
    told = capsys.readouterr().out
    assert "2 keys, 3 audit events." in told
    assert "credentials of the nodes" in told and router_place.url in told
    assert file.stat().st_mode & 0o777 == 0o600
    assert read_contents(file).rows["keys"] == 2
    key = router_place.admin_key_file.read_bytes().strip()
    assert key not in file.read_bytes()


def test_without_a_router_the_file_is_copied(
    router_place: RouterAccess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another router has it open, at an address that the command does not know."""
    settings = Settings(router_place.home)
    client = AdminClient(away(tmp_path))
    backup.run(client, settings, options(tmp_path / "b"), as_json=True)
    row = json.loads(capsys.readouterr().out)
    assert row["source"] == str(router_place.home / "registry.db")
    assert (row["file"], row["rows"]["keys"]) == (str(tmp_path / "b"), 2)


def test_without_a_router_and_a_registry_there_is_nothing_to_copy(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="--router names a router on another machine"):
        backup.run(
            AdminClient(away(tmp_path)),
            Settings(tmp_path),
            options(tmp_path / "b", of_file=True),
            as_json=False,
        )
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_exists_is_replaced_only_by_force(
    router_place: RouterAccess, tmp_path: Path
) -> None:
    file = tmp_path / "b"
    file.write_text("old")
    client = AdminClient(router_place)
    with pytest.raises(CommandFailed, match="--force replaces it"):
        backup.run(client, Settings(tmp_path), options(file), as_json=False)
    assert file.read_text() == "old"
    backup.run(client, Settings(tmp_path), options(file, force=True), as_json=False)
    assert read_contents(file).rows["keys"] == 2


def test_the_registry_itself_is_never_replaced(router_place: RouterAccess) -> None:
    settings = Settings(router_place.home)
    chosen = options(Path(settings.registry), force=True)
    with pytest.raises(CommandFailed, match="the registry itself"):
        backup.run(AdminClient(router_place), settings, chosen, as_json=False)


def test_a_folder_that_does_not_exist_is_one_sentence(
    router_place: RouterAccess, tmp_path: Path
) -> None:
    chosen = options(tmp_path / "none" / "b")
    with pytest.raises(CommandFailed, match="cannot be written"):
        backup.run(AdminClient(router_place), Settings(tmp_path), chosen, as_json=False)


def test_a_backup_that_breaks_off_is_not_left_under_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_request: RouterRequest, write: object) -> RouterResponse:
        assert callable(write)
        write(b"SQLite format 3\0")
        raise ConnectionError("its response ended early")

    monkeypatch.setattr("router.commands.client.download", cut)
    client = AdminClient(RouterAccess(key="k"))
    with pytest.raises(CommandFailed, match="ended early"):
        backup.run(client, Settings(tmp_path), options(tmp_path / "b"), as_json=False)
    assert list(tmp_path.iterdir()) == []


def test_a_response_that_is_no_registry_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(request: RouterRequest, write: object) -> RouterResponse:
        assert callable(write)
        write(b"hello")
        return RouterResponse(request.url, 200, b"")

    monkeypatch.setattr("router.commands.client.download", other)
    with pytest.raises(CommandFailed, match="cannot be used"):
        backup.run(
            AdminClient(RouterAccess(key="k")),
            Settings(tmp_path),
            options(tmp_path / "b"),
            as_json=False,
        )
    assert list(tmp_path.iterdir()) == []


def test_credentials_do_not_cross_a_network_in_plain_http_unasked(tmp_path: Path) -> None:
    client = AdminClient(RouterAccess("http://mini.example:8800", key="k"))
    with pytest.raises(CommandFailed, match="--allow-plain-http"):
        backup.run(client, Settings(tmp_path), options(tmp_path / "b"), as_json=False)


def test_a_refused_key_is_one_sentence(router_place: RouterAccess, tmp_path: Path) -> None:
    client = AdminClient(RouterAccess(router_place.url, tmp_path / "other", "mlxf-wrong"))
    with pytest.raises(CommandFailed, match="MLX_FLEET_KEY"):
        backup.run(client, Settings(tmp_path), options(tmp_path / "b"), as_json=False)
    assert not (tmp_path / "b").exists()


def test_contents_are_told_in_words() -> None:
    rows = {"nodes": 1, "aliases": 2, "usage": 1203, "residency": 9, "policies": 0, "teams": 3}
    rows["boats"] = 2
    assert (
        contents_text(Contents("1", None, rows))
        == "1 node, 2 aliases, 3 teams, 1,203 usage records, 2 boats"
    )
    assert contents_text(Contents("1", None, {})) == "nothing yet"


def test_a_backup_needs_a_key_of_an_admin(router_place: RouterAccess) -> None:
    key = router_place.inference_key()
    headers = {"authorization": f"Bearer {key}"}
    assert httpx.post(f"{router_place.url}/admin/backup").status_code == 401
    assert httpx.post(f"{router_place.url}/admin/backup", headers=headers).status_code == 403
