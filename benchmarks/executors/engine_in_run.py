"""Tokens per second of the engine under the multi-turn executor, against bare vLLM on the same token lengths.

Both in one process, on one engine, alternating. Uses SmolLM2-135M-Instruct (scripts/fetch_smollm2.py) on sums; the bare
engine gets the prompts that the executor sent, and samples exactly as many tokens for each.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from turngym.agents.base import Completion, Sampling
from turngym.agents.chat import ChatAgent
from turngym.agents.tokenizer import load_tokenizer
from turngym.envs.resolve import resolve
from turngym.executors.engines.vllm import VllmConfig, VllmEngine
from turngym.executors.env_pool import EnvPool
from turngym.executors.limits import Limits
from turngym.executors.multi_turn import MultiTurn

ROOT = Path(__file__).resolve().parents[2]
GOAL = 0.90
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1, "system_prompt": "Think, then answer."}


class Recorder:
    """Passes requests on and keeps what was asked and how much came."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.max_context = engine.max_context
        self.requests: list[tuple[list[int], int]] = []

    async def generate(self, prompt_ids, sampling, images=None, request="") -> Completion:
        completion = await self.engine.generate(prompt_ids, sampling, images, request)
        self.requests.append((prompt_ids.tolist(), len(completion.token_ids)))
        return completion


async def executor_round(executor: MultiTurn, engine: VllmEngine, tasks, attempts: int, sampling: Sampling):
    recorder = Recorder(engine)
    began = time.perf_counter()
    await asyncio.gather(*[executor.run(task, n, recorder, sampling) for task in tasks for n in range(attempts)])
    seconds = time.perf_counter() - began
    tokens = sum(length for _, length in recorder.requests)
    return recorder.requests, tokens / seconds


async def bare_round(engine: VllmEngine, requests: list[tuple[list[int], int]], tag: str) -> float:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def one(index: int, prompt: list[int], length: int) -> int:
        params = SamplingParams(
            max_tokens=length,
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        async for output in engine._child._engine.generate({"prompt_token_ids": prompt}, params, f"{tag}-{index}"):
            count = len(output.outputs[0].token_ids)
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*[one(i, prompt, length) for i, (prompt, length) in enumerate(requests) if length])
    return sum(counts) / (time.perf_counter() - began)


async def measure(model: str, rounds: int, num_tasks: int, attempts: int) -> dict[str, object]:
    config = VllmConfig(model, "bfloat16", max_context=256, num_threads=os.cpu_count() or 1)
    engine = VllmEngine(config, on_gpu=False)
    await engine.start()
    factory = resolve("reasoning_gym/chain_sum", SUMS)
    executor = MultiTurn(ChatAgent(load_tokenizer(model)), factory, EnvPool(), Limits(max_context=256))
    tasks = factory.tasks("train", 0)
    sampling = Sampling(max_tokens=48)
    inside, bare = [], []
    try:
        for index in range(rounds + 1):
            chosen = tasks[index * num_tasks : (index + 1) * num_tasks]
            requests, inside_rate = await executor_round(executor, engine, chosen, attempts, sampling)
            await engine.pause()  # forget the prompts' keys and values, so that neither side finds them ready
            await engine.resume()
            bare_rate = await bare_round(engine, requests, f"bare{index}")
            await engine.pause()
            await engine.resume()
            if index:  # the first round warms up
                inside.append(inside_rate)
                bare.append(bare_rate)
                print(f"{index:>5} {inside_rate:>12.0f} {bare_rate:>12.0f} {inside_rate / bare_rate:>8.3f}", flush=True)
    finally:
        await engine.close()
    ratio = statistics.median(a / b for a, b in zip(inside, bare, strict=True))
    return {
        "name": "executors/engine_in_run",
        "value": statistics.median(inside),
        "unit": "tokens/s",
        "baseline": "bare vLLM, same engine, same lengths",
        "baseline_value": statistics.median(bare),
        "ratio": round(ratio, 3),
        "goal": GOAL,
        "met": bool(ratio >= GOAL),
        "where": f"CPU, {os.cpu_count()} cores",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--attempts", type=int, default=8)
    arguments = parser.parse_args()
    fetch = [sys.executable, str(ROOT / "scripts" / "fetch_smollm2.py")]
    model = subprocess.run(fetch, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    print(f"{'round':>5} {'executor':>12} {'bare vLLM':>12} {'ratio':>8}")
    print(json.dumps(asyncio.run(measure(model, arguments.rounds, arguments.tasks, arguments.attempts))))


if __name__ == "__main__":
    main()
