"""Steps per CPU second of 65,000 concurrent three-turn episodes, against a bare asyncio loop; no episode may fail.

Both in one process and one event loop, alternating, on the same scripted engine (long-tailed completions, tens of
milliseconds per token), the same environment and the same texts. The bare loop awaits what the executor awaits and
tokenises the same observations; it has no deadlines, no template, no records. An asynchronous environment is the
measure; the same in threads is run beside it. Uses SmolLM2's tokenizer (scripts/fetch_smollm2.py).
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from transformers import PreTrainedTokenizerBase

from turngym.agents.base import Sampling
from turngym.agents.chat import ChatAgent
from turngym.agents.tokenizer import Codec, load_tokenizer
from turngym.envs.base import AsyncEnv, Env
from turngym.envs.task import Task
from turngym.executors.engines.scripted import SCRIPTED_LOGPROB, Reply, Request, ScriptedEngine
from turngym.executors.env_pool import EnvPool
from turngym.executors.limits import Limits
from turngym.executors.multi_turn import MultiTurn
from turngym.executors.trajectory import EndReason

ROOT = Path(__file__).resolve().parents[2]
GOAL = 0.5
GOAL_PEAK_GIB = 8
TURNS = 3
NUM_THREADS = 32
SECONDS_PER_TOKEN = 0.03
MEDIAN_TOKENS, MOST_TOKENS = 100, 1000
WORDS = "the tool printed lines of a log where test number failed with error in file at line and then it said".split()
SAMPLING = Sampling(max_tokens=MOST_TOKENS)
LIMITS = Limits(max_context=8192, max_seconds=7200.0, generate_timeout_s=3600.0, env_timeout_s=600.0)


class Texts:
    """Observations of 20 to 100 words; the same for both sides."""

    def __init__(self, count: int = 1024) -> None:
        rng = np.random.default_rng(0)
        self._texts = [" ".join(rng.choice(WORDS, rng.integers(20, 100))) for _ in range(count)]

    def __call__(self, seed: int, turn: int) -> str:
        return self._texts[(seed * TURNS + turn) % len(self._texts)]


TEXTS = Texts()


class Tool(AsyncEnv):
    """Answers twice with a text and ends at the third action."""

    num_begun = 0

    async def reset(self, *, seed=None, options=None):
        Tool.num_begun += 1
        self.seed, self.turn = seed, 0
        return TEXTS(seed, 0), {}

    async def step(self, action):
        self.turn += 1
        done = self.turn == TURNS
        return "" if done else TEXTS(self.seed, self.turn), float(done), done, False, {}


class BlockingTool(Env):
    """The same as a synchronous environment."""

    def reset(self, *, seed=None, options=None):
        Tool.num_begun += 1
        self.seed, self.turn = seed, 0
        return TEXTS(seed, 0), {}

    def step(self, action):
        self.turn += 1
        done = self.turn == TURNS
        return "" if done else TEXTS(self.seed, self.turn), float(done), done, False, {}


@dataclass(frozen=True)
class Measured:
    """One side of one round."""

    steps_per_cpu_s: float
    seconds: float


class Fleet:
    """What both sides share."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, count: int) -> None:
        self.tokenizer = tokenizer
        self.tasks = [Task(id=f"task/{index}", seed=index) for index in range(count)]
        self._end_id = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._said = np.asarray(tokenizer.encode(" ".join(TEXTS(i, 0) for i in range(200))), np.int32)
        rng = np.random.default_rng(1)
        drawn = rng.lognormal(np.log(MEDIAN_TOKENS), 0.8, TURNS * count)
        self._lengths = drawn.astype(int).clip(2, MOST_TOKENS - 1).tolist()
        self._starts = rng.integers(0, len(self._said) - MOST_TOKENS, TURNS * count).tolist()

    def engine(self) -> ScriptedEngine:
        return ScriptedEngine(self._reply, token_latency_s=SECONDS_PER_TOKEN, max_context=8192, keep_requests=False)

    def _reply(self, request: Request) -> Reply:
        length, start = self._lengths[request.index], self._starts[request.index]
        token_ids = self._said[start : start + length].copy()
        token_ids[-1] = self._end_id
        return Reply(token_ids, np.full(length, SCRIPTED_LOGPROB, np.float32))

    async def measure(self, episode: Callable[[ScriptedEngine, Task], Awaitable[None]]) -> Measured:
        """Run all episodes; no completion is given before every episode waits for one, so that all run at once."""
        engine = self.engine()
        Tool.num_begun = 0
        await engine.pause()
        began, cpu = time.perf_counter(), time.process_time()
        episodes = [asyncio.ensure_future(episode(engine, task)) for task in self.tasks]
        while Tool.num_begun < len(self.tasks):
            await asyncio.sleep(0.1)
        await engine.resume()
        await asyncio.gather(*episodes)
        steps = TURNS * len(self.tasks)
        return Measured(steps / (time.process_time() - cpu), time.perf_counter() - began)

    async def executor(self, env: type[AsyncEnv] | type[Env]) -> Measured:
        """Run them through `MultiTurn`; the first failure ends the benchmark."""
        multi_turn = MultiTurn(ChatAgent(self.tokenizer), env, EnvPool(NUM_THREADS), LIMITS)

        async def episode(engine: ScriptedEngine, task: Task) -> None:
            trajectory = await multi_turn.run(task, 0, engine, SAMPLING)
            if trajectory.end_reason is not EndReason.TERMINATED or trajectory.reward != 1.0:
                raise RuntimeError(f"{task.id} ended as {trajectory.end_reason}: {trajectory.failure}")

        return await self.measure(episode)

    async def bare(self, env_class: type[AsyncEnv] | type[Env]) -> Measured:
        """Await the same and tokenise the same, with nothing around it."""
        loop = asyncio.get_running_loop()
        codec = Codec(self.tokenizer)

        def encode(text: str) -> np.ndarray:
            return codec.encode(f"<|im_end|>\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")

        async def in_loop(engine: ScriptedEngine, task: Task) -> None:
            env = Tool()
            text, _ = await env.reset(seed=task.seed)
            done = False
            while not done:
                await engine.generate(encode(text), SAMPLING)
                text, _, done, _, _ = await env.step("")
            await env.close()

        async def in_threads(engine: ScriptedEngine, task: Task) -> None:
            env = await loop.run_in_executor(threads, BlockingTool)
            text, _ = await loop.run_in_executor(threads, lambda: env.reset(seed=task.seed))
            done = False
            while not done:
                await engine.generate(encode(text), SAMPLING)
                text, _, done, _, _ = await loop.run_in_executor(threads, env.step, "")
            await loop.run_in_executor(threads, env.close)

        with ThreadPoolExecutor(NUM_THREADS) as threads:
            return await self.measure(in_loop if env_class is Tool else in_threads)


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


async def rounds(fleet: Fleet, env: type[AsyncEnv] | type[Env], num: int) -> tuple[list[Measured], list[Measured]]:
    inside, bare = [], []
    for index in range(num):
        bare.append(await fleet.bare(env))
        inside.append(await fleet.executor(env))
        ratio = inside[-1].steps_per_cpu_s / bare[-1].steps_per_cpu_s
        cells = f"{inside[-1].steps_per_cpu_s:>12.0f} {bare[-1].steps_per_cpu_s:>12.0f} {ratio:>8.3f}"
        print(f"{env.__name__:>12} {index:>5} {cells} {inside[-1].seconds:>8.1f} {peak_gib():>6.2f}", flush=True)
    return inside, bare
