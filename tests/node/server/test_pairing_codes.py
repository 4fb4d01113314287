"""The life of a code, and what a router gets for it."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from node.errors import (
    BadRequest,
    NodeError,
    NoPairingCode,
    PairingCodeExpired,
    PairingCodeUsed,
    PairingCodeVoid,
    WrongPairingCode,
)
from node.protocol.pairing import CODE_S, Code, PairRequest, Proofs, new_salt
from node.server.pairing_codes import PairingCodes, PairingDesk
from node.server.pairings import Pairings
from tests.fakes import FakeClock

FINGERPRINT = hashlib.sha256(b"a certificate").digest()


def asked(code: Code, name: str = "desk") -> PairRequest:
    salt = new_salt()
    proof = Proofs(code, FINGERPRINT, salt).of_router("r1", name)
    return PairRequest("r1", name, salt, proof)


@pytest.fixture
def desk(tmp_path: Path) -> PairingDesk:
    return PairingDesk("n1", FINGERPRINT, Pairings(tmp_path / "pairings.json"))


async def test_a_right_code_pairs_and_both_sides_prove_it(desk: PairingDesk) -> None:
    code = desk.codes.renew()
    request = asked(code)
    reply = await desk.pair(request)
    proofs = Proofs(code, FINGERPRINT, request.salt)
    assert reply.node_id == "n1"
    assert reply.proof == proofs.of_agent("n1", reply.secret)
    assert desk.pairings.router_of(reply.secret) == "r1"
    assert reply.secret not in repr(reply)


async def test_a_code_is_for_one_router(desk: PairingDesk) -> None:
    code = desk.codes.renew()
    request = asked(code)
    await desk.pair(request)
    for again in (request, asked(code)):
        with pytest.raises(PairingCodeUsed):
            await desk.pair(again)


async def test_without_a_code_nobody_is_paired(desk: PairingDesk) -> None:
    with pytest.raises(NoPairingCode):
        await desk.pair(asked(Code.new(FINGERPRINT)))


async def test_five_wrong_codes_make_the_right_one_void(desk: PairingDesk) -> None:
    code = desk.codes.renew()
    raised: list[NodeError] = []
    for _ in range(5):
        with pytest.raises((WrongPairingCode, PairingCodeVoid)) as error:
            await desk.pair(asked(Code.new(FINGERPRINT)))
        raised.append(error.value)
    assert [type(each) for each in raised] == [*[WrongPairingCode] * 4, PairingCodeVoid]
    assert "4 more tries" in raised[0].message
    assert "is 1 more try" in raised[3].message
    with pytest.raises(PairingCodeVoid):
        await desk.pair(asked(code))
    assert desk.pairings.list() == ()


async def test_the_fifth_try_may_be_the_right_one(desk: PairingDesk) -> None:
    code = desk.codes.renew()
    for _ in range(4):
        with pytest.raises(WrongPairingCode):
            await desk.pair(asked(Code.new(FINGERPRINT)))
    assert (await desk.pair(asked(code))).node_id == "n1"


async def test_tries_at_the_same_time_are_counted_one_by_one(desk: PairingDesk) -> None:
    desk.codes.renew()
    tries = [desk.pair(asked(Code.new(FINGERPRINT))) for _ in range(8)]
    ended = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(each, WrongPairingCode) for each in ended) == 4
    assert sum(isinstance(each, PairingCodeVoid) for each in ended) == 4


async def test_a_proof_for_another_certificate_is_a_wrong_code(desk: PairingDesk) -> None:
    code, salt = desk.codes.renew(), new_salt()
    forged = FINGERPRINT[:5] + bytes(27)
    proof = Proofs(code, forged, salt).of_router("r1", "desk")
    with pytest.raises(WrongPairingCode):
        await desk.pair(PairRequest("r1", "desk", salt, proof))


@pytest.mark.parametrize(
    "request_",
    [
        PairRequest("", "desk", new_salt(), ""),
        PairRequest("r1", "de\nsk", new_salt(), ""),
        PairRequest("r1", "desk", "00", ""),
    ],
)
async def test_a_request_that_is_none_costs_no_try(
    desk: PairingDesk, request_: PairRequest
) -> None:
    code = desk.codes.renew()
    for _ in range(6):
        with pytest.raises(BadRequest):
            await desk.pair(request_)
    await desk.pair(asked(code))


def test_a_code_is_valid_for_ten_minutes() -> None:
    clock = FakeClock()
    codes = PairingCodes(FINGERPRINT, clock)
    code = codes.renew()
    clock.advance(CODE_S - 1)
    assert codes.begin_try() == code
    clock.advance(1)
    with pytest.raises(PairingCodeExpired):
        codes.begin_try()
    assert codes.renew() != code
    codes.begin_try()


def test_a_new_code_makes_the_one_before_it_void() -> None:
    codes = PairingCodes(FINGERPRINT)
    first = codes.renew()
    assert codes.renew() != first
    assert codes.begin_try() != first
