"""The file of paired routers."""

import stat
from pathlib import Path

import pytest

from node.errors import NotPaired, StartError, TooManyRouters
from node.server import pairings
from node.server.pairings import Pairings


def names(found: Pairings) -> list[str]:
    return [each.name for each in found.list()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "pairings.json"


async def test_routers_stay_paired_across_a_restart_and_no_secret_is_in_the_file(
    file: Path,
) -> None:
    first = Pairings(file)
    one, two = await first.add("r1", "desk"), await first.add("r2", "lab")
    assert one not in file.read_text()
    assert two not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = Pairings(file)
    assert names(again) == ["desk", "lab"]
    assert (again.router_of(one), again.router_of(two)) == ("r1", "r2")
    assert again.router_of("") is None
    assert again.router_of(one[:-1]) is None


async def test_a_router_that_pairs_again_has_one_secret(file: Path) -> None:
    found = Pairings(file)
    old = await found.add("r1", "desk")
    new = await found.add("r1", "desk")
    assert (found.router_of(old), found.router_of(new)) == (None, "r1")
    assert names(found) == ["desk"]


async def test_a_new_secret_makes_the_old_one_void_at_its_first_use(file: Path) -> None:
    found = Pairings(file)
    old = await found.add("r1", "desk")
    lost = await found.rotate("r1")
    new = await found.rotate("r1")
    assert found.router_of(old) == "r1"  # the answer may have been lost
    assert found.router_of(lost) is None
    assert found.router_of(new) == "r1"
    assert found.router_of(old) is None
    assert Pairings(file).router_of(old) is None
    assert Pairings(file).router_of(new) == "r1"


async def test_routers_are_removed_by_name_by_id_or_all(file: Path) -> None:
    found = Pairings(file)
    secrets = {each: await found.add(each, f"the {each}") for each in ("a", "b", "c", "d")}
    await found.remove("the a")
    await found.remove("b")
    assert [found.router_of(secret) for secret in secrets.values()] == [None, None, "c", "d"]
    assert (found.has("b"), found.has("c")) == (False, True)
    with pytest.raises(NotPaired, match="'b'"):
        await found.remove("b")
    await found.remove(None)
    assert Pairings(file).list() == ()
    with pytest.raises(NotPaired):
        await found.remove(None)
    with pytest.raises(NotPaired):
        await found.rotate("c")


async def test_what_cannot_be_written_is_not_valid(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Pairings(file)

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(pairings, "_write", fail)
    with pytest.raises(OSError, match="disk full"):
        await found.add("r1", "desk")
    assert found.list() == ()


async def test_the_number_of_routers_is_limited(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairings, "MAX_ROUTERS", 1)
    found = Pairings(file)
    await found.add("r1", "desk")
    await found.add("r1", "desk")
    with pytest.raises(TooManyRouters):
        await found.add("r2", "lab")


@pytest.mark.parametrize("text", ["{", '[{"router_id": 1}]', "\xff"])
def test_a_damaged_file_stops_the_start(file: Path, text: str) -> None:
    file.write_text(text, encoding="latin-1")
    with pytest.raises(StartError, match=r"damaged.*delete it"):
        Pairings(file)


def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot be read"):
        Pairings(tmp_path)
