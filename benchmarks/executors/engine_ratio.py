"""Tokens per second of vLLM under the multi-turn executor, against bare vLLM on the same requests.

Both in one process, on one engine, alternating. The bare side is a loop over vLLM's own `AsyncLLM`: for each episode
the prompts that the executor sent, one after the other, each sampled to the same length; all episodes at once. Before
each side the prefix cache is emptied, and within a side both find in it what their own earlier turns left. Uses
SmolLM2-135M-Instruct (scripts/fetch_smollm2.py), or the model folder that is given.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections import defaultdict

import numpy as np
import smollm2

from turngym.agents.base import Completion, Sampling
from turngym.agents.chat import agent_for
from turngym.agents.tokenizer import load_tokenizer
from turngym.envs.base import AsyncEnv
from turngym.envs.task import Task
from turngym.executors.engines.vllm import VllmConfig, VllmEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.pools.env_pool import EnvPool

GOAL = 0.90
TURNS = 3
MAX_CONTEXT = 768
SAMPLING = Sampling(max_tokens=48)
LINE = "why how many does the third word of this line name a colour a town or an animal and what is next"

Turns = list[tuple[list[int], int]]  # of one episode: each prompt, and how many tokens came


class Questions(AsyncEnv):
    """Asks three times, in 40 words drawn from the task's seed, whatever the answer."""

    async def reset(self, *, seed=None, options=None):
        self._draws, self._turn = np.random.default_rng(seed), 0
        return self._question(), {}

    async def step(self, action):
        self._turn += 1
        done = self._turn == TURNS
        return "" if done else self._question(), 0.0, done, False, {}

    def _question(self) -> str:
        return " ".join(self._draws.choice(LINE.split(), 40))


class Recorder:
    """Passes requests on and keeps what was asked and how much came."""

    def __init__(self, engine: VllmEngine) -> None:
        self.engine = engine
        self.max_context = engine.max_context
        self.episodes: dict[str, Turns] = defaultdict(list)

    async def generate(self, prompt_ids, sampling, images=None, request="") -> Completion:
        completion = await self.engine.generate(prompt_ids, sampling, images, request)
        self.episodes[request.rpartition("/")[0]].append((prompt_ids.tolist(), len(completion.token_ids)))
        return completion


def num_tokens(episodes: list[Turns]) -> int:
    return sum(length for turns in episodes for _, length in turns)


async def executor_round(executor: MultiTurn, engine: VllmEngine, tasks: list[Task]) -> tuple[list[Turns], float]:
    """Return each episode's requests, and tokens per second."""
    recorder = Recorder(engine)
    began = time.perf_counter()
    trajectories = await asyncio.gather(*[executor.run(task, 0, recorder, SAMPLING) for task in tasks])
    seconds = time.perf_counter() - began
    if failures := [trajectory.failure for trajectory in trajectories if trajectory.failure]:
        raise RuntimeError(f"{len(failures)} episodes failed, the first by {failures[0]}")
    episodes = list(recorder.episodes.values())
    return episodes, num_tokens(episodes) / seconds


async def bare_round(engine: VllmEngine, episodes: list[Turns], tag: str) -> float:
    """Return vLLM's tokens per second on the same requests."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    async def one(index: int, turns: Turns) -> None:
        for turn, (prompt_ids, length) in enumerate(turns):
            params = SamplingParams(
                max_tokens=length,
                ignore_eos=True,
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            prompt = {"prompt_token_ids": prompt_ids}
            async for output in engine._child._engine.generate(prompt, params, f"{tag}-{index}-{turn}"):
                final = output
            assert len(final.outputs[0].token_ids) == length

    began = time.perf_counter()
    await asyncio.gather(*[one(index, turns) for index, turns in enumerate(episodes)])
    return num_tokens(episodes) / (time.perf_counter() - began)


async def forget(engine: VllmEngine) -> None:
    """Empty the prefix cache."""
    await engine.pause()
    await engine.resume()


async def measure(model: str, rounds: int, num_episodes: int) -> dict[str, object]:
    config = VllmConfig(model, "bfloat16", max_context=MAX_CONTEXT, num_threads=os.cpu_count() or 1)
    engine = VllmEngine(config, on_gpu=False)
    await engine.start()
    executor = MultiTurn(agent_for(load_tokenizer(model)), Questions, EnvPool(), Limits(max_context=MAX_CONTEXT))
    inside, bare = [], []
    try:
        print(f"{'round':>5} {'executor':>12} {'bare vLLM':>12} {'ratio':>8} {'tokens':>8}")
        for index in range(rounds + 1):
            seeds = range(index * num_episodes, (index + 1) * num_episodes)
            tasks = [Task(id=str(seed), seed=seed) for seed in seeds]
            await forget(engine)
            episodes, inside_rate = await executor_round(executor, engine, tasks)
            await forget(engine)
            bare_rate = await bare_round(engine, episodes, f"bare{index}")
            if index:  # the first round warms up
                inside.append(inside_rate)
                bare.append(bare_rate)
                cells = f"{inside_rate:>12.0f} {bare_rate:>12.0f} {inside_rate / bare_rate:>8.3f}"
                print(f"{index:>5} {cells} {num_tokens(episodes):>8}", flush=True)
    finally:
        await engine.close()
    ratio = statistics.median(a / b for a, b in zip(inside, bare, strict=True))
    return {
        "name": "executors/engine_ratio",
        "value": round(statistics.median(inside), 1),
        "unit": "tokens/s",
        "baseline": "bare vLLM, same engine, same requests turn by turn",
        "baseline_value": round(statistics.median(bare), 1),
        "ratio": round(ratio, 3),
        "goal": GOAL,
        "met": ratio >= GOAL,
        "where": f"CPU, {os.cpu_count()} cores",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model's folder; by default SmolLM2-135M-Instruct")
    parser.add_argument("--quick", action="store_true", help="one small round, to see that it runs")
    options = parser.parse_args()
    numbers = (1, 4) if options.quick else (7, 16)
    print(json.dumps(asyncio.run(measure(options.model or smollm2.model_folder(), *numbers))))


if __name__ == "__main__":
    main()
