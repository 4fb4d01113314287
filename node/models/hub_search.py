"""Searches the Hugging Face hub for MLX models."""

from collections.abc import Mapping

import msgspec
from huggingface_hub import constants, get_session, get_token
from huggingface_hub.errors import OfflineModeIsEnabled

from node.errors import DownloadError
from node.models.huggingface import unreached
from serving.version import own_version

TIMEOUT_S = 15.0
MOST_RESULTS = 100
MOST_BYTES = 16 * 1024 * 1024
"""Most bytes of the hub's response; a model takes some hundred."""
_OTHER_TASKS = frozenset(
    (
        *("automatic-speech-recognition", "text-to-speech", "text-to-audio", "audio-to-audio"),
        *("audio-classification", "voice-activity-detection", "text-to-image", "image-to-image"),
        *("text-to-video", "image-to-video", "image-classification", "image-segmentation"),
        *("object-detection", "depth-estimation", "feature-extraction", "sentence-similarity"),
        *("image-feature-extraction", "text-ranking", "text-classification", "fill-mask"),
        *("token-classification", "zero-shot-image-classification", "mask-generation"),
    )
)
"""Tasks of models that generate no text."""
_DTYPE_BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "BOOL"), 8),
    **dict.fromkeys(("F4", "I4", "U4"), 4),
}


class HubModel(msgspec.Struct, frozen=True):
    """A model at the hub."""

    repo_id: str
    weight_bytes: int | None
    """None if the hub does not know it."""
    downloads: int
    """Downloads of the last 30 days."""
    likes: int
    task: str
    """Empty if unknown."""
    gated: bool
    """Its terms must be accepted first."""


class _Weights(msgspec.Struct):
    parameters: dict[str, int] = {}


class _Row(msgspec.Struct):
    id: str
    downloads: int | None = None
    likes: int | None = None
    gated: bool | str | None = None
    pipeline_tag: str | None = None
    safetensors: _Weights | None = None


_decode = msgspec.json.Decoder(list[_Row]).decode


def search_hub(words: str, limit: int, token: str | None = None) -> list[HubModel]:
    """The MLX models that match the words, those with the most downloads first. Raises
    `DownloadError`."""
    try:
        data = _get(words, token)
    except DownloadError:
        raise
    except OfflineModeIsEnabled:
        raise DownloadError(
            "The hub is not searched, since HF_HUB_OFFLINE is set; unset it to search."
        ) from None
    # The hub's library passes on the errors of its HTTP library, whichever that is.
    except Exception as error:
        raise DownloadError(unreached(error)) from error
    try:
        rows = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DownloadError(
            f"{constants.ENDPOINT} does not respond like the hub; is a proxy in the way?"
        ) from error
    return [_model(row) for row in rows if (row.pipeline_tag or "") not in _OTHER_TASKS][:limit]


def _get(words: str, token: str | None) -> bytes:
    """The hub's response. `HfApi.list_models` would retry for minutes without a time limit, and
    look first which agent runs the command, to tell the hub."""
    token = token or get_token()
    query = {
        "search": words,
        "filter": "mlx",
        "sort": "downloads",
        "limit": str(MOST_RESULTS),
        "expand": ["downloads", "likes", "gated", "pipeline_tag", "safetensors"],
    }
    data = bytearray()
    with get_session().stream(
        "GET",
        f"{constants.ENDPOINT}/api/models",
        params=query,
        headers={
            "user-agent": f"mlx-fleet/{own_version()}",
            **({"authorization": f"Bearer {token}"} if token else {}),
        },
        timeout=TIMEOUT_S,
    ) as response:
        if response.status_code >= 400:
            raise DownloadError(_refusal(response.status_code))
        for piece in response.iter_bytes():
            data += piece
            if len(data) > MOST_BYTES:
                raise DownloadError("The hub's response is too long; search for more words.")
    return bytes(data)


def _model(row: _Row) -> HubModel:
    return HubModel(
        repo_id=row.id,
        weight_bytes=None if row.safetensors is None else _bytes(row.safetensors.parameters),
        downloads=max(row.downloads or 0, 0),
        likes=max(row.likes or 0, 0),
        task=row.pipeline_tag or "",
        gated=bool(row.gated),
    )


def _bytes(elements: Mapping[str, int]) -> int | None:
    """Bytes of so many elements of each type; None if one is unknown. Packed weights are counted
    as the numbers that they are packed in."""
    if not elements or any(dtype not in _DTYPE_BITS for dtype in elements):
        return None
    return sum(_DTYPE_BITS[dtype] * count for dtype, count in elements.items()) // 8


def _refusal(status: int) -> str:
    if status in (401, 403):
        return "The hub refuses the search: the token of --token or HF_TOKEN is wrong."
    if status == 429:
        return "The hub refuses more searches for now; try again in some minutes, or give a token."
    return f"The hub responds with status {status}; try again later."
