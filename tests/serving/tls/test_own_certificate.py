"""A server's own key and certificate."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from serving.tls import own_certificate as module
from serving.tls.own_certificate import CertificateUnusable, own_certificate


def test_it_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "home" / "tls.pem"
    first = own_certificate(file)
    assert own_certificate(file).der == first.der
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]
    assert own_certificate(tmp_path / "other.pem").fingerprint != first.fingerprint


def test_no_clock_ends_its_validity_and_it_signs_nothing(tmp_path: Path) -> None:
    found = x509.load_der_x509_certificate(own_certificate(tmp_path / "tls.pem").der)
    assert found.not_valid_before_utc.year == 2000
    assert found.not_valid_after_utc.year == 9999
    key = found.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nx\n"])
def test_a_damaged_file_stops_the_start_with_advice(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tls.pem"
    file.write_text(text)
    with pytest.raises(CertificateUnusable, match="delete it: a new one is made"):
        own_certificate(file)


def test_a_key_that_does_not_fit_stops_the_start(tmp_path: Path) -> None:
    one, two = tmp_path / "a.pem", tmp_path / "b.pem"
    own_certificate(one)
    own_certificate(two)
    key, _, _ = one.read_text().partition("-----BEGIN CERTIFICATE")
    _, begin, rest = two.read_text().partition("-----BEGIN CERTIFICATE")
    one.write_text(key + begin + rest)
    with pytest.raises(CertificateUnusable):
        own_certificate(one)


def test_a_file_that_another_process_makes_meanwhile_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tls.pem"
    make = module.new_pem
    theirs = make()

    def late() -> bytes:
        file.write_bytes(theirs)
        return make()

    monkeypatch.setattr(module, "new_pem", late)
    own_certificate(file)
    assert file.read_bytes() == theirs
    assert list(tmp_path.iterdir()) == [file]
