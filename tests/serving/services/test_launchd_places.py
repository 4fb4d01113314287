"""Agents and daemons of launchd, which is played."""

from pathlib import Path

import pytest

from serving.errors import CannotStart
from serving.services.description import ServiceState, User
from serving.services.installation import install, places_of, uninstall
from serving.services.launchd_places import BOOTSTRAP_S, LaunchAgent, LaunchDaemon
from serving.services.machine import Ran, ServiceMachine
from tests.serving.services.stands import Launchd, service_in

LABEL = "mlx-fleet.router"
GUI, SYSTEM = f"gui/501/{LABEL}", f"system/{LABEL}"
SUDO = ["/bin/router", "service", "install"]


@pytest.fixture
def anna(tmp_path: Path) -> User:
    return User("anna", 501, tmp_path)


def silent(_line: str) -> None:
    pass


def agent_of(launchd: Launchd, anna: User) -> LaunchAgent:
    return LaunchAgent(LABEL, launchd.machine(anna, is_mac=True))


def daemon_of(tmp_path: Path, machine: ServiceMachine) -> LaunchDaemon:
    return LaunchDaemon(LABEL, machine, tmp_path / "LaunchDaemons")


def test_an_agent_is_installed_where_launchd_looks_at_a_login(anna: User) -> None:
    launchd = Launchd()
    home = anna.home / ".mlx-fleet" / "router"
    machine = launchd.machine(anna, is_mac=True)
    agent, _ = places_of("router", home, machine)
    service = service_in(home, user=anna)
    assert install(service, [agent], machine, silent) == []
    file = anna.home / "Library" / "LaunchAgents" / "mlx-fleet.router.plist"
    assert file.read_text() == agent.render(service) and file.stat().st_mode & 0o777 == 0o644
    assert home.stat().st_mode & 0o777 == 0o700 and (home / "logs").is_dir()
    assert launchd.ran[-2:] == [f"launchctl enable {GUI}", f"launchctl bootstrap gui/501 {file}"]
    assert agent.state() == ServiceState(True, 4711, None)
    assert agent.starts() == "when anna logs in"


def test_a_second_install_waits_for_the_end_of_the_first_service(anna: User) -> None:
    launchd = Launchd(most_looks=12)
    agent = agent_of(launchd, anna)
    home = anna.home / ".mlx-fleet" / "router"
    install(service_in(home, user=anna), [agent], agent.machine, silent)
    said: list[str] = []
    again = service_in(home, "--port", "81", user=anna)
    assert install(again, [agent], agent.machine, said.append) == ["+ --port 81"]
    assert said == [f"Stopping {LABEL} …", f"Starting {LABEL} …"]
    assert launchd.loaded == {GUI: 4711} and launchd.paused_s == 12 * 0.5
    assert install(again, [agent], agent.machine, silent) == []


def test_a_label_that_stays_taken_is_tried_for_a_while(anna: User) -> None:
    launchd = Launchd()
    agent = agent_of(launchd, anna)
    taken = iter([Ran(5, "Bootstrap failed: 5: Input/output error")] * 3 + [Ran(0, "")])
    launchd.plays["launchctl bootstrap"] = lambda _command: next(taken)
    agent.load(silent)
    assert launchd.paused_s == 1.5
    launchd.plays["launchctl bootstrap"] = lambda _command: Ran(5, "5: Input/output error\n")
    with pytest.raises(CannotStart, match=r"bootstrap gui/501 .* says: 5: Input/output error\."):
        agent.load(silent)
    assert launchd.paused_s == 1.5 + BOOTSTRAP_S


def test_another_error_is_final(anna: User) -> None:
    launchd = Launchd()
    launchd.plays["launchctl bootstrap"] = lambda _command: Ran(78, "Bad request.\n")
    with pytest.raises(CannotStart, match=r"says: Bad request\."):
        agent_of(launchd, anna).load(silent)
    assert launchd.paused_s == 0


def test_a_service_that_does_not_end_is_an_error(anna: User) -> None:
    launchd = Launchd(loaded={GUI: 4711}, most_looks=1_000)
    with pytest.raises(CannotStart, match=r"has not ended after 90 s \(launchctl: Operation now"):
        agent_of(launchd, anna).unload(silent)


def test_nobody_at_the_screen_is_an_error_that_names_the_way_out(anna: User) -> None:
    agent = agent_of(Launchd(has_screen=False), anna)
    home = anna.home / "r"
    with pytest.raises(CannotStart, match=r"anna is not logged in .* `service install --at-boot`"):
        install(service_in(home, user=anna), [agent], agent.machine, silent)
    assert not agent.file.exists() and not home.exists()


def test_a_daemon_needs_root_and_the_error_has_the_command(tmp_path: Path, anna: User) -> None:
    daemon = daemon_of(tmp_path, Launchd().machine(anna, is_mac=True))
    service = service_in(anna.home / "a b", "--port", "81", user=anna)
    with pytest.raises(CannotStart) as caught:
        install(service, [daemon], daemon.machine, silent)
    assert str(caught.value) == (
        "Only root may change what starts with the machine: sudo /bin/router service install "
        f"--at-boot --home '{anna.home}/a b' --port 81"
    )


def test_a_daemon_never_runs_as_root(tmp_path: Path) -> None:
    root = User("root", 0, tmp_path)
    daemon = daemon_of(tmp_path, Launchd().machine(root, is_root=True, is_mac=True))
    with pytest.raises(CannotStart, match="would run as root"):
        daemon.need_rights(SUDO)


def test_a_daemon_takes_the_place_of_the_agent(
    tmp_path: Path, anna: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners: list[tuple[Path, int]] = []
    monkeypatch.setattr("os.chown", lambda path, user, _group: owners.append((path, user)))
    launchd = Launchd()
    agent = agent_of(launchd, anna)
    home = anna.home / ".mlx-fleet" / "router"
    service = service_in(home, user=anna)
    install(service, [agent], agent.machine, silent)
    machine = launchd.machine(anna, is_root=True, is_mac=True)
    daemon = daemon_of(tmp_path, machine)
    (home / "logs").rmdir()
    # Nobody is logged in at the screen any more.
    launchd.has_screen = False
    install(service, [daemon, LaunchAgent(LABEL, machine)], machine, silent)
    assert launchd.loaded == {SYSTEM: 4711}
    assert not agent.file.exists() and "<string>anna</string>" in daemon.file.read_text()
    assert owners == [(home / "logs", 501)]
    assert daemon.starts() == "with the machine"


def test_an_agent_takes_no_daemons_place_without_root(tmp_path: Path, anna: User) -> None:
    launchd = Launchd()
    root = launchd.machine(anna, is_root=True, is_mac=True)
    home = anna.home / "r"
    service = service_in(home, user=anna)
    install(service, [daemon_of(tmp_path, root)], root, silent)
    agent = agent_of(launchd, anna)
    daemon = daemon_of(tmp_path, agent.machine)
    with pytest.raises(CannotStart, match=f"sudo /bin/router service uninstall --home {home}$"):
        install(service, [agent, daemon], agent.machine, silent)
    with pytest.raises(CannotStart, match="sudo this"):
        uninstall([agent, daemon], ["this"], silent)
    assert launchd.loaded == {SYSTEM: 4711}
    assert uninstall([agent, daemon_of(tmp_path, root)], ["this"], silent) == [daemon.file]
    assert launchd.loaded == {} and not daemon.file.exists()


def test_another_users_daemon_is_left_alone(tmp_path: Path, anna: User) -> None:
    bob = User("bob", 502, tmp_path)
    home = anna.home / "r"
    machine = Launchd().machine(bob, is_root=True, is_mac=True)
    install(service_in(home, user=bob), [daemon_of(tmp_path, machine)], machine, silent)
    machine = Launchd().machine(anna, is_root=True, is_mac=True)
    with pytest.raises(CannotStart, match="is a service of the user bob, not of .* of anna"):
        install(service_in(home, user=anna), [daemon_of(tmp_path, machine)], machine, silent)
