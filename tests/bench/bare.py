"""The bare loop of mlx-lm's BatchGenerator, in a process of its own: no HTTP, no text.

`python -m tests.bench.bare FOLDER` reads one JSON object a line from standard input, chats and
max_tokens, runs them as one batch, and answers with one line.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from node.engine.blas import load_fast_blas

load_fast_blas()

import mlx.core as mx  # noqa: E402  the BLAS comes first
from mlx_lm.generate import BatchGenerator  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

MAX_ROWS = 16


def run(network: Any, stop_tokens: list[int], prompts: list[list[int]], max_tokens: int) -> int:
    """Decodes all prompts together; the tokens that came out."""
    generator: Any = BatchGenerator(
        network,
        stop_tokens=[[token] for token in stop_tokens],
        completion_batch_size=MAX_ROWS,
        prefill_batch_size=MAX_ROWS,
    )
    generator.insert(prompts, max_tokens=[max_tokens] * len(prompts))
    tokens, left = 0, len(prompts)
    while left:
        for response in generator.next_generated():
            left -= response.finish_reason is not None
            tokens += response.finish_reason != "stop"
    generator.close()
    return tokens


def main() -> None:
    folder = Path(sys.argv[1])
    network, config = load_model(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ends = config.get("eos_token_id") or tokenizer.eos_token_id
    stop_tokens = ends if isinstance(ends, list) else [ends]
    for text in sys.stdin:
        asked = json.loads(text)
        prompts = [
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            for chat in asked["chats"]
        ]
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        tokens = run(network, stop_tokens, prompts, asked["max_tokens"])
        answer = {
            "tokens": tokens,
            "prompt_tokens": sum(map(len, prompts)),
            "wall_s": time.perf_counter() - began_s,
            "cpu_s": time.process_time() - cpu_began_s,
        }
        print(json.dumps(answer), flush=True)
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
