"""Probes tiny random hybrid models whose heads are wide enough for Metal's own kernels: rows of
equal and of different lengths, together and alone, on the GPU and on the CPU."""

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes
from tokenizers import Tokenizer, models

from node.engine.model.detokenizer import Vocabulary
from node.engine.model.load import LoadedModel
from node.engine.probe.line import Line, ProbeSizes, not_measured, timed
from node.engine.probe.outputs import NEAR_TIE_NATS
from node.engine.probe.runner import Prompt, Runner, divergence, spec_of

SECTION = "hybrids"
_VOCAB = 512
_COUNT = 40
_SHARE = 0.02
_PROMPTS = {"of equal length": (40, 40), "of unequal length": (40, 7, 133)}

_CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "full_attention_interval": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.5,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    },
    "mamba2": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_heads": 8,
        "head_dim": 64,
        "state_size": 128,
        "n_groups": 1,
        "conv_kernel": 4,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-5,
        "time_step_limit": [0.0, 100.0],
        "time_step_rank": "auto",
        "tie_word_embeddings": False,
    },
}


def probe(sizes: ProbeSizes, *, has_gpu: bool) -> Iterator[Line]:
    for kind in _CONFIGS:
        model = _make(kind)
        for name, lengths in _PROMPTS.items():
            yield _together(kind, model, name, [_prompt(n, n) for n in lengths])
        yield (
            _on_cpu(kind, model)
            if has_gpu
            else not_measured(
                SECTION,
                f"{kind}: GPU against CPU",
                f"logits within {_SHARE:.0%}",
                "there is no GPU",
            )
        )
        yield _steady(kind, model, sizes.steps)


def _prompt(length: int, seed: int) -> Prompt:
    return tuple(3 + (seed * 31 + at * 17) % (_VOCAB - 3) for at in range(length))


def _make(kind: str) -> LoadedModel:
    config = {
        "model_type": kind,
        "vocab_size": _VOCAB,
        "max_position_embeddings": 8192,
        **_CONFIGS[kind],
    }
    mx.random.seed(7)
    model_class, args_class = _get_classes(config)
    network = model_class(args_class.from_dict(config))
    parameters: list[tuple[str, mx.array]] = list(tree_flatten(network.parameters()))  # type: ignore[arg-type]
    drawn = [
        (name, mx.random.normal(array.shape) * (2.0 / array.shape[-1] ** 0.5))
        for name, array in parameters
        if array.ndim >= 2 and "A_log" not in name
    ]
    network.load_weights(drawn, strict=False)
    mx.eval(network.parameters())
    words = {f"w{number} ": number for number in range(_VOCAB)}
    vocabulary = Vocabulary(Tokenizer(models.WordLevel(words, unk_token="w0 ")))
    weight_bytes = sum(array.nbytes for _, array in parameters)
    return LoadedModel(network, vocabulary, frozenset(), 8192, _VOCAB, weight_bytes)


def _together(kind: str, model: LoadedModel, name: str, prompts: list[Prompt]) -> Line:
    with timed() as took:
        alone = [_generate(model, [each])[0] for each in prompts]
        together = _generate(model, prompts)
        found = [divergence(*pair) for pair in zip(alone, together, strict=True)]
    same = sum(each.at is None for each in found)
    return Line(
        SECTION,
        f"{kind}: rows {name} together and alone",
        f"the same, or diverging where two tokens are within {NEAR_TIE_NATS} nats",
        f"{same} of {len(found)} the same; largest gap {max(each.gap for each in found):.3f} nats",
        all(each.is_near_tie(NEAR_TIE_NATS) for each in found),
        took(),
    )


def _generate(model: LoadedModel, prompts: list[Prompt]) -> Any:
    with Runner(model, spec_of()) as runner:
        return runner.generate(prompts, _COUNT)


def _on_cpu(kind: str, model: LoadedModel) -> Line:
    tokens = mx.array([_prompt(200, 3)])
    with timed() as took:
        outputs = []
        for device in (mx.gpu, mx.cpu):
            with mx.stream(device):
                logits = model.network(tokens, cache=make_prompt_cache(model.network))
                outputs.append(logits.astype(mx.float32))
                mx.eval(outputs[-1])
        spread = float(mx.std(outputs[1]))
        off = float(mx.abs(outputs[0] - outputs[1]).max()) / spread
    found = f"largest difference {off:.2%} of the spread"
    return Line(
        SECTION,
        f"{kind}: GPU against CPU",
        f"logits within {_SHARE:.0%}",
        found,
        off <= _SHARE,
        took(),
    )


def _steady(kind: str, model: LoadedModel, steps: int) -> Line:
    """Decodes two rows for long: memory of an unevaluated graph would grow with each step."""
    with Runner(model, spec_of()) as runner, timed() as took:
        runner.generate([_prompt(40, 1), _prompt(40, 2)], 100)
        before_bytes = mx.get_active_memory()
        mx.reset_peak_memory()
        runner.generate([_prompt(40, 1), _prompt(40, 2)], steps)
        grown = mx.get_peak_memory() - before_bytes
        seconds = took()
    limit = 64 << 20
    return Line(
        SECTION,
        f"{kind}: memory over {steps} steps of two rows",
        f"grows by at most {limit >> 20} MiB, with the KV of {steps} tokens",
        f"{grown / (1 << 20):.1f} MiB",
        grown <= limit,
        seconds,
    )
