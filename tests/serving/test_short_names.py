"""Short names and the models that they stand for."""

import pytest

from serving.short_names import ShortNames, ambiguous

QWEN, QWEN_8 = "mlx-community/Qwen3-4B-4bit", "mlx-community/Qwen3-4B-8bit"
THINKING = "mlx-community/Qwen3-4B-Thinking-2507-4bit"
GEMMA = "mlx-community/gemma-3-4b-it-qat-4bit"
LLAMA = "mlx-community/Llama-3.2-3B-Instruct"
OTHER = "lab/Llama-3.2-3B-Instruct"


@pytest.mark.parametrize(
    ("names", "name", "found"),
    [
        # Another case, and no owner.
        ([QWEN], QWEN, (QWEN,)),
        ([QWEN], QWEN.lower(), (QWEN,)),
        ([QWEN], "qwen3-4b-4BIT", (QWEN,)),
        (["fast"], "Fast", ("fast",)),
        # Without packaging; of two packagings none is meant.
        ([QWEN, GEMMA], "qwen3-4b", (QWEN,)),
        ([QWEN, GEMMA], "mlx-community/qwen3-4b", (QWEN,)),
        ([QWEN, QWEN_8], "qwen3-4b", (QWEN, QWEN_8)),
        ([QWEN, QWEN_8], "qwen3-4b-8bit", (QWEN_8,)),
        (["org/m-mlx-bf16"], "org/m-mlx", ("org/m-mlx-bf16",)),
        # A variant does not make the plain name ambiguous.
        ([QWEN, THINKING], "qwen3-4b", (QWEN,)),
        ([THINKING], "qwen3-4b", (THINKING,)),
        ([QWEN, THINKING], "qwen3-4b-thinking", (THINKING,)),
        # Beginnings end at a hyphen.
        ([GEMMA], "gemma", (GEMMA,)),
        ([GEMMA], "gemm", ()),
        ([LLAMA], "llama-3", ()),
        ([LLAMA], "llama-3.2", (LLAMA,)),
        ([QWEN, THINKING, GEMMA], "qwen3", (QWEN, THINKING)),
        # Tags as in Ollama's names.
        ([QWEN], "qwen3:4b", (QWEN,)),
        ([QWEN], "qwen3-4b:latest", (QWEN,)),
        (["qwen3:4b"], "qwen3-4b", ("qwen3:4b",)),
        # Owners.
        ([LLAMA, OTHER], "llama-3.2-3b-instruct", (OTHER, LLAMA)),
        ([LLAMA, OTHER], "lab/llama-3.2", (OTHER,)),
        ([LLAMA], "lab/llama-3.2", ()),
        # Other models are never meant.
        ([QWEN], "qwen3-8b", ()),
        ([QWEN], "qwen3-4b-4bit-dwq", ()),
        ([QWEN], "4bit", ()),
        ([QWEN], "gpt-4o", ()),
        (["gpt-oss-20b"], "gpt-4o", ()),
        # Neither too little nor too much of a name.
        (["ab-4bit"], "ab", ()),
        ([], "qwen3", ()),
        ([QWEN], "", ()),
        ([QWEN], "q" * 100_000, ()),
        (["4bit"], "4bit", ("4bit",)),
    ],
)
def test_a_short_name_stands_for_the_names_that_it_fits_best(
    names: list[str], name: str, found: tuple[str, ...]
) -> None:
    assert ShortNames(names).find(name) == found


def test_every_name_finds_itself() -> None:
    names = [QWEN, QWEN_8, THINKING, GEMMA, LLAMA, OTHER]
    assert all(ShortNames(names).find(name) == (name,) for name in names)


def test_an_error_lists_the_candidates_up_to_six() -> None:
    names = tuple(f"org/m-{number}bit" for number in range(2, 10))
    assert ambiguous("m", names) == (
        "The name 'm' fits several models: org/m-2bit, org/m-3bit, org/m-4bit, org/m-5bit, "
        "org/m-6bit, org/m-7bit and 2 more. Give more of the name."
    )


def test_a_name_of_many_parts_has_few_beginnings() -> None:
    long = "-".join(f"p{number}" for number in range(80))
    short = ShortNames([long])
    assert short.find("-".join(f"p{number}" for number in range(12))) == (long,)
    assert sum(map(len, short._by_form)) < 20
