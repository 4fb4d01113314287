from pathlib import Path

import pytest

from registry.migrate import Migration
from router.commands.client import RouterAccess
from router.commands.home import migrate
from router.errors import StartError
from router.settings import Settings


def test_migrate_prints_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(tmp_path / "router")
    migrate.run(settings)
    assert f"{settings.registry}: empty -> " in capsys.readouterr().out
    migrate.run(settings)
    assert "already" in capsys.readouterr().out


def test_migrate_needs_the_router_stopped(router_place: RouterAccess) -> None:
    with pytest.raises(StartError, match="in use"):
        migrate.run(Settings(router_place.home))


def test_a_migration_is_reported_by_its_revisions() -> None:
    assert migrate.sentence("r.db", Migration("0001", "0002")) == "r.db: 0001 -> 0002"
