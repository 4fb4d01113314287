"""Copies from a peer that a test plays, over a real socket."""

import errno
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from node.errors import DownloadError
from node.models import peer as peer_copy
from node.models.download import Downloads
from node.models.peer import PeerFailed, PeerSource, check_paths
from node.protocol.lifecycle import ManifestFile, Peer
from serving.tls.own_certificate import OwnCertificate, own_certificate
from serving.unreached import cause_of
from tests.node.model_folders import share

WEIGHTS = bytes(range(256)) * 1000
FILES = {"config.json": b"{}", "sub/model.safetensors": WEIGHTS, "empty.txt": b""}


@dataclass
class PlayedPeer:
    """A peer with the behaviour that a test sets, and the requests that it received."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    cut_at: int | None = None
    """Closes the connection after so many bytes of a file …"""
    cut: Callable[[], object] = lambda: None
    """… when this returns."""
    ignores_ranges: bool = False
    status: int = 206
    requested: list[tuple[str, str, str]] = field(default_factory=list)
    """Ticket, path, range."""


@contextmanager
def playing(peer: PlayedPeer, certificate: OwnCertificate | None = None) -> Iterator[PlayedPeer]:
    """Serves the peer's files, over TLS with a certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            path, given = query["path"][0], self.headers["range"]
            peer.requested.append((self.headers["x-fleet-ticket"], path, given))
            data = peer.files[path]
            begin = 0 if peer.ignores_ranges else int(given[6:-1])
            self.send_response(200 if peer.ignores_ranges else peer.status)
            self.send_header("content-length", str(len(data) - begin))
            self.send_header("content-range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if peer.cut_at is not None and len(data) > peer.cut_at:
                self.wfile.write(data[begin : peer.cut_at])
                peer.cut()
                self.close_connection = True
            else:
                self.wfile.write(data[begin:])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        server.socket = certificate.context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        scheme = "http" if certificate is None else "https"
        peer.url = f"{scheme}://127.0.0.1:{server.server_port}"
        yield peer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def copy(
    peer: PlayedPeer,
    folder: Path,
    files: dict[str, bytes] | None = None,
    certificate: str = "",
) -> int:
    """Copies the files that `files` lists; how many bytes were reported."""
    reported: list[int] = []
    source = PeerSource(Peer(peer.url, share(files or FILES), certificate), "org/tiny")
    Downloads(folder, source, reported.append).run(source.files(), at_once=1)
    return sum(reported)


def test_every_file_arrives_with_its_hash(tmp_path: Path) -> None:
    with playing(PlayedPeer()) as peer:
        assert copy(peer, tmp_path) == sum(map(len, FILES.values()))
    for path, data in FILES.items():
        assert (tmp_path / path).read_bytes() == data
    # An empty file needs no bytes.
    assert [(ticket, path) for ticket, path, _ in peer.requested] == [
        ("ticket", "config.json"),
        ("ticket", "sub/model.safetensors"),
    ]


def test_a_copy_is_resumed_at_the_byte_where_it_stopped(tmp_path: Path) -> None:
    with playing(PlayedPeer(cut_at=100_000)) as peer:
        with pytest.raises(PeerFailed, match="stopped delivering org/tiny.*resumes the pull"):
            copy(peer, tmp_path)
        here = (tmp_path / "sub/model.safetensors").stat().st_size
        assert 0 < here <= 100_000
        peer.cut_at = None
        peer.requested.clear()
        assert copy(peer, tmp_path) == sum(map(len, FILES.values()))
    assert peer.requested == [("ticket", "sub/model.safetensors", f"bytes={here}-")]
    assert (tmp_path / "sub/model.safetensors").read_bytes() == WEIGHTS


@pytest.mark.parametrize(("platform", "named"), [("darwin", True), ("linux", False)])
def test_a_mac_that_finds_no_way_to_its_peer_names_the_setting_of_the_local_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, *, named: bool
) -> None:
    def no_way(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EHOSTUNREACH, "No route to host")

    monkeypatch.setattr(socket, "create_connection", no_way)
    monkeypatch.setattr(peer_copy, "cause_of", partial(cause_of, platform=platform))
    with pytest.raises(PeerFailed, match="No route to host") as raised:
        copy(PlayedPeer(url="http://192.168.1.7:8801"), tmp_path)
    assert ("Privacy & Security > Local Network" in raised.value.message) is named


def test_what_is_there_and_is_no_part_of_the_file_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/model.safetensors").write_bytes(bytes(5000))
    (tmp_path / "config.json").write_bytes(b"longer than it should be")
    with playing(PlayedPeer()) as peer:
        assert copy(peer, tmp_path) == sum(map(len, FILES.values()))
    assert (tmp_path / "sub/model.safetensors").read_bytes() == WEIGHTS
    assert (tmp_path / "config.json").read_bytes() == b"{}"
    assert [given for _, _, given in peer.requested] == ["bytes=0-", "bytes=5000-", "bytes=0-"]


def test_bytes_with_another_hash_are_rejected(tmp_path: Path) -> None:
    with playing(PlayedPeer()) as peer:
        peer.files["config.json"] = b"[]"
        with pytest.raises(PeerFailed, match="wrong hash"):
            copy(peer, tmp_path)
    assert (tmp_path / "config.json").read_bytes() == b""


@pytest.mark.parametrize("data", [WEIGHTS + b"x", WEIGHTS[:-1]])
def test_a_file_of_another_length_is_rejected(tmp_path: Path, data: bytes) -> None:
    with playing(PlayedPeer()) as peer:
        peer.files["sub/model.safetensors"] = data
        with pytest.raises(PeerFailed, match="does not have the size that the node reported"):
            copy(peer, tmp_path)


def test_a_refused_ticket_s_error_names_what_to_do(tmp_path: Path) -> None:
    message = "no longer accepts the ticket for org/tiny.*resumes the pull"
    with playing(PlayedPeer(status=403)) as peer, pytest.raises(PeerFailed, match=message):
        copy(peer, tmp_path)


def test_an_answer_from_another_byte_is_not_written(tmp_path: Path) -> None:
    message = "responded with status 200"
    with playing(PlayedPeer(ignores_ranges=True)) as peer, pytest.raises(PeerFailed, match=message):
        copy(peer, tmp_path)


def test_a_peer_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match="stopped delivering"):
        copy(PlayedPeer(url="http://127.0.0.1:9"), tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        "../x.json",
        "a/../../x.json",
        "/etc/x.json",
        "a//b.json",
        "./x.json",
        "a\\..\\x.json",
        "x\0.json",
        "",
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(DownloadError, match="outside the model's folder|no file of a model"):
        check_paths((ManifestFile(path, 1, ""),))


@pytest.mark.parametrize(
    "path", ["x.py", "mlx-fleet.json", ".partial", ".cache/x.json", "\x1b[2Jx.json"]
)
def test_a_file_that_is_none_of_a_model_is_refused(path: str) -> None:
    with pytest.raises(DownloadError, match="no file of a model"):
        check_paths((ManifestFile(path, 1, ""),))


def test_a_link_in_the_folder_leads_nowhere(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "m"
    outside.mkdir()
    folder.mkdir()
    (folder / "sub").symlink_to(outside)
    with playing(PlayedPeer()) as peer:
        with pytest.raises(DownloadError, match="leads out of the model's folder"):
            copy(peer, folder)
        (folder / "sub").unlink()
        (folder / "config.json").unlink()
        (folder / "config.json").symlink_to(outside / "config.json")
        with pytest.raises(DownloadError, match="leads out of the model's folder"):
            copy(peer, folder)
    assert list(outside.iterdir()) == []


def test_a_peer_is_known_by_the_certificate_that_the_router_names(tmp_path: Path) -> None:
    mine, other = (own_certificate(tmp_path / each) for each in ("a.pem", "b.pem"))
    pins = [ssl.DER_cert_to_PEM_cert(each.der) for each in (mine, other)]
    with playing(PlayedPeer(), mine) as peer:
        for pin in (pins[1], "", "nonsense"):
            with pytest.raises(PeerFailed):
                copy(peer, tmp_path / "copy", certificate=pin)
        assert peer.requested == []
        assert copy(peer, tmp_path / "copy", certificate=pins[0])
