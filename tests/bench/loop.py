"""A step loop in a process of its own: no HTTP.

`python -m tests.bench.loop mlx-lm|own FOLDER` reads one JSON object a line from standard input,
chats and max_tokens, runs them as one batch, and answers with one line. `mlx-lm` is the bare loop
of its `BatchGenerator`, without text; `own` is this project's engine, text included.
"""

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from node.engine.model.blas import load_fast_blas

load_fast_blas()

import mlx.core as mx  # noqa: E402  the BLAS comes first
from mlx_lm.generate import BatchGenerator  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402
from transformers import AutoTokenizer  # noqa: E402

from node.engine.load import load  # noqa: E402
from node.ipc.generate import GenerateRequest, SamplingParams  # noqa: E402
from node.ipc.messages import EngineSpec, MemoryLease, Refused  # noqa: E402

MAX_ROWS = 16
_LIVE_KV_BYTES = 2 << 30
_STORED_KV_BYTES = 1 << 30


class Loop(Protocol):
    def run(self, prompts: list[list[int]], max_tokens: int) -> int:
        """Decodes all prompts together; the tokens that came out, without end tokens."""

    def close(self) -> None: ...


class MlxLmLoop:
    """mlx-lm's `BatchGenerator`, stepped until nothing is left."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self._network, config = load_model(folder)
        ends = config.get("eos_token_id") or tokenizer.eos_token_id
        self._stop_tokens: list[int] = ends if isinstance(ends, list) else [ends]

    def run(self, prompts: list[list[int]], max_tokens: int) -> int:
        generator: Any = BatchGenerator(
            self._network,
            stop_tokens=[[token] for token in self._stop_tokens],
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

    def close(self) -> None:
        mx.synchronize()
        mx.clear_streams()


class OwnLoop:
    """This project's engine, stepped in this thread."""

    def __init__(self, folder: Path) -> None:
        weight_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        spec = EngineSpec(
            engine="text",
            model="bench",
            folder=str(folder),
            max_rows=MAX_ROWS,
            lease=MemoryLease(weight_bytes, _LIVE_KV_BYTES, _STORED_KV_BYTES),
        )
        self._engine = load(spec, lambda fraction: None)
        self._numbers = itertools.count()

    def run(self, prompts: list[list[int]], max_tokens: int) -> int:
        for prompt in prompts:
            uid = str(next(self._numbers))
            greedy = SamplingParams(temperature=0.0)
            reply = self._engine.submit(GenerateRequest(uid, tuple(prompt), max_tokens, greedy))
            if isinstance(reply, Refused):
                raise SystemExit(reply.reason)
        tokens, left = 0, len(prompts)
        while left:
            wait_s = self._engine.wait_s()
            if wait_s is None:
                raise SystemExit("The engine has nothing to do, but rows are not finished.")
            time.sleep(wait_s)
            for delta in self._engine.step():
                if delta.usage is not None:
                    left -= 1
                    tokens += delta.usage.completion_tokens
        return tokens

    def close(self) -> None:
        self._engine.close()


def main() -> None:
    kind, folder = sys.argv[1], Path(sys.argv[2])
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    loop: Loop = OwnLoop(folder) if kind == "own" else MlxLmLoop(folder, tokenizer)
    for text in sys.stdin:
        request = json.loads(text)
        prompts = [
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            for chat in request["chats"]
        ]
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        tokens = loop.run(prompts, request["max_tokens"])
        answer = {
            "tokens": tokens,
            "prompt_tokens": sum(map(len, prompts)),
            "wall_s": time.perf_counter() - began_s,
            "cpu_s": time.process_time() - cpu_began_s,
        }
        print(json.dumps(answer), flush=True)
    loop.close()


if __name__ == "__main__":
    main()
