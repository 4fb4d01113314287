"""Codes as people read, say and type them, and the proofs of both sides."""

import hashlib

import pytest

from node.protocol.pairing import Code, NotACode, Proofs, is_salt, new_salt, new_secret

FINGERPRINT = hashlib.sha256(b"a certificate").digest()


def test_a_code_has_forty_bits_of_the_certificate_and_forty_random_ones() -> None:
    codes = {Code.new(FINGERPRINT) for _ in range(50)}
    assert {each.certificate for each in codes} == {FINGERPRINT[:5]}
    assert len({each.secret for each in codes}) == 50
    assert {len(each.secret) for each in codes} == {5}


def test_a_code_survives_being_read_aloud() -> None:
    code = Code(bytes(5), b"\x00\x44\x32\x14\xc7")
    text = code.text()
    assert [len(group) for group in text.split("-")] == [4, 4, 4, 4]
    assert not set("ILOU") & set(text)
    for typed in (text.lower(), text.replace("-", " "), text.replace("-", ""), f" {text} "):
        assert Code.read(typed) == code
    assert Code.read(text.replace("0", "O").replace("1", "l")) == code


@pytest.mark.parametrize("text", ["", "abc", "K3QW-M2XP-9RTE-7HB", "U" * 16, "é" * 16, "0" * 5000])
def test_other_texts_are_no_codes(text: str) -> None:
    with pytest.raises(NotACode, match="16 letters and digits"):
        Code.read(text)


def test_a_code_shows_itself_only_on_purpose() -> None:
    code = Code.new(FINGERPRINT)
    assert code.text() not in repr(code)
    assert repr(code.secret) not in repr(code)


def test_a_code_is_for_one_certificate() -> None:
    code = Code.new(FINGERPRINT)
    assert code.fits(FINGERPRINT)
    assert code.fits(FINGERPRINT[:5] + bytes(27))
    assert not code.fits(bytes(32))


def test_a_proof_is_of_one_code_one_whole_certificate_one_salt_and_one_side() -> None:
    code, salt = Code.new(FINGERPRINT), new_salt()
    proof = Proofs(code, FINGERPRINT, salt).of_router("r1", "desk")
    assert proof == Proofs(code, FINGERPRINT, salt).of_router("r1", "desk")
    # A certificate made to have the same first half of a code.
    forged = FINGERPRINT[:5] + bytes(27)
    others = {
        Proofs(code, forged, salt).of_router("r1", "desk"),
        Proofs(code, FINGERPRINT, new_salt()).of_router("r1", "desk"),
        Proofs(Code.new(FINGERPRINT), FINGERPRINT, salt).of_router("r1", "desk"),
        Proofs(code, FINGERPRINT, salt).of_router("r1", "desk2"),
        Proofs(code, FINGERPRINT, salt).of_router("r1d", "esk"),
        Proofs(code, FINGERPRINT, salt).of_agent("r1", "desk"),
    }
    assert len(others) == 6
    assert proof not in others


def test_salts_and_secrets_are_random() -> None:
    assert is_salt(new_salt())
    assert new_salt() != new_salt()
    assert len(new_secret()) >= 43
    assert new_secret() != new_secret()
