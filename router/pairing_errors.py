"""Errors of a pairing with an agent. A class's docstring is its default message."""

from router.errors import RouterError


class PairingFailed(RouterError):
    """The agent cannot be paired; nothing was stored."""

    status = 409
    code = "pairing_failed"
    kind = "invalid_request_error"


class WrongCertificate(PairingFailed):
    """The code does not belong to the certificate at this address, and nothing was sent there. Is
    the first half of the code mistyped, or the code of another agent? If not, somebody may be
    between this router and the agent."""

    code = "wrong_certificate"


class AgentNotProven(PairingFailed):
    """The agent did not prove that it knows the code, so it may not be the one that showed it;
    nothing was stored."""

    code = "agent_not_proven"


class NoPairingCode(PairingFailed):
    """The agent has no code now; `node-agent pair` on its machine shows one."""

    code = "no_pairing_code"


class PairingCodeExpired(PairingFailed):
    """The code has expired; `node-agent pair` on the agent's machine shows a new one."""

    code = "pairing_code_expired"


class PairingCodeUsed(PairingFailed):
    """The code has been used; `node-agent pair` on the agent's machine shows a new one."""

    code = "pairing_code_used"


class WrongPairingCode(PairingFailed):
    """The second half of the code is wrong."""

    code = "wrong_pairing_code"


class PairingCodeVoid(PairingFailed):
    """The code is void after five wrong tries; `node-agent pair` on the agent's machine shows a new
    one."""

    code = "pairing_code_void"


PAIRING_FAILURES: dict[str, type[PairingFailed]] = {
    str(each.code): each
    for each in (
        NoPairingCode,
        PairingCodeExpired,
        PairingCodeUsed,
        WrongPairingCode,
        PairingCodeVoid,
    )
}
"""By the code of the agent's error."""
