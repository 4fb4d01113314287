"""Bodies and rows of `/admin/aliases`; the command line reads the same types."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from node.protocol.template_kwargs import RESERVED_KWARGS
from router.api.admin.views import Name, RequestBody, Row

MAX_TARGETS = 16
Selector = Literal["first", "warm", "spillover"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_Penalty = Annotated[float, Field(ge=-2, le=2)]


class Defaults(RequestBody):
    """Fields that a target adds to requests which lack them, named as in chat completions; each
    path gets the ones it has, under its own names."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stop: str | Annotated[list[str], Field(min_length=1, max_length=16)] | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    max_thinking_tokens: Annotated[int, Field(ge=0)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _are_known(cls, given: Any) -> Any:
        names = given if isinstance(given, dict) else {}
        unknown = [name for name in names if name not in cls.model_fields]
        if unknown:
            known = ", ".join(cls.model_fields)
            raise ValueError(f"{unknown[0]} cannot be a default; these can: {known}")
        return given

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_free(cls, given: dict[str, Any] | None) -> dict[str, Any] | None:
        reserved = sorted(RESERVED_KWARGS.intersection(given or {}))
        if reserved:
            raise ValueError(f"{reserved[0]} is not for an alias to set")
        return given

    @model_validator(mode="after")
    def _agree(self) -> "Defaults":
        """Rejects combinations that nodes would refuse."""
        if self.reasoning_effort == "none" and self.enable_thinking:
            raise ValueError("enable_thinking contradicts a reasoning_effort of none")
        is_off = self.enable_thinking is False or self.reasoning_effort == "none"
        if is_off and self.max_thinking_tokens is not None:
            raise ValueError("max_thinking_tokens is about thinking, which is off")
        return self

    def given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class TargetBody(RequestBody):
    model: Name
    """A model, or `MODEL@NODE`."""
    defaults: Defaults = Defaults()


class SetAlias(RequestBody):
    targets: Annotated[tuple[TargetBody, ...], Field(min_length=1, max_length=MAX_TARGETS)]
    """Targets in order of preference."""
    selector: Selector = "first"
    spill_at: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """For `spillover`: number of requests in flight on a target from which on the next one is
    used."""
    force: bool = False
    """True if targets may be models that no node has reported yet."""

    @model_validator(mode="after")
    def _spills(self) -> "SetAlias":
        if (self.selector == "spillover") is not (self.spill_at is not None):
            raise ValueError(
                "the selector spillover needs spill_at (--spill-at N), and no other takes it"
            )
        return self


class TargetRow(Row):
    model: str
    defaults: dict[str, Any]
    known: bool
    """True if any node has reported the model."""
    paid: bool


class AliasRow(Row):
    name: str
    targets: tuple[TargetRow, ...]
    selector: str
    spill_at: int | None
    known: bool
    """True if any node has reported one of the targets."""
    created_at_s: float
