"""Steps per CPU second of 65,000 concurrent three-turn episodes, against a bare asyncio loop; no episode may fail.

Both in one process and one event loop, alternating, on the same scripted engine (long-tailed completions, 30 ms per
token, its clock ten times as fast), the same environment and the same texts. The bare loop awaits what the executor
awaits and tokenises the same observations, chat marks included, as fast as the executor does; it has no deadlines,
renders no history, decodes nothing and keeps nothing. An asynchronous environment is the measure; the same in threads
is run beside it. Uses SmolLM2's tokenizer where it is (scripts/fetch_smollm2.py), else bytes.
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import smollm2
from transformers import PreTrainedTokenizerBase

from turngym.agents.base import Sampling
from turngym.agents.chat import ChatAgent
from turngym.agents.tokenizer import Codec
from turngym.envs.base import AsyncEnv, Env
from turngym.envs.task import Task
from turngym.executors.engines.scripted import SCRIPTED_LOGPROB, Reply, Request, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.trajectory import EndReason
from turngym.executors.fleet.rollout_actor import GC_THRESHOLD
from turngym.executors.pools.env_pool import EnvPool

GOAL = 0.5
GOAL_PEAK_GIB = 8
TURNS = 3
NUM_THREADS = 32
SECONDS_PER_TOKEN = 0.03 / 10  # the engine's time runs ten times as fast as it would
MEDIAN_TOKENS, MOST_TOKENS = 100, 1000
LINE = "the tool printed lines of a log where test number failed with error in file at line and then it said"
WORDS = LINE.split()
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
        self._said = Codec(tokenizer).encode(" ".join(TEXTS(i, 0) for i in range(200)))
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


async def compare(fleet: Fleet, env: type[AsyncEnv] | type[Env], rounds: int) -> tuple[list[float], list[float]]:
    """Return the steps per CPU second of the executor and of the bare loop, one pair for each round."""
    inside, bare = [], []
    for index in range(rounds):
        without, under = await fleet.bare(env), await fleet.executor(env)
        inside.append(under.steps_per_cpu_s)
        bare.append(without.steps_per_cpu_s)
        cells = f"{inside[-1]:>12.0f} {bare[-1]:>12.0f} {inside[-1] / bare[-1]:>8.3f}"
        print(f"{env.__name__:>12} {index:>5} {cells} {under.seconds:>9.1f} {peak_gib():>9.2f}", flush=True)
    return inside, bare


def ratio_of(inside: list[float], bare: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(inside, bare, strict=True))


async def measure(num_episodes: int, rounds: int) -> dict[str, object]:
    gc.set_threshold(GC_THRESHOLD)
    tokenizer = smollm2.tokenizer()
    fleet = Fleet(tokenizer, num_episodes)
    print(f"{'environment':>12} {'round':>5} {'executor':>12} {'bare':>12} {'ratio':>8} {'seconds':>9} {'peak GiB':>9}")
    inside, bare = await compare(fleet, Tool, rounds)
    threaded = await compare(fleet, BlockingTool, 1)
    ratio = ratio_of(inside, bare)
    return {
        "name": "executors/episodes",
        "value": round(statistics.median(inside), 1),
        "unit": "steps per CPU second",
        "baseline": "bare asyncio loop, same awaits, same texts tokenised",
        "baseline_value": round(statistics.median(bare), 1),
        "ratio": round(ratio, 3),
        "goal": GOAL,
        "met": ratio >= GOAL and peak_gib() <= GOAL_PEAK_GIB,
        "where": f"CPU, one event loop, {os.cpu_count()} cores, a tokenizer of {len(tokenizer)} tokens",
        "num_episodes": num_episodes,
        "num_failed": 0,
        "peak_gib": round(peak_gib(), 2),
        "peak_goal_gib": GOAL_PEAK_GIB,
        "threads_steps_per_cpu_s": round(threaded[0][0], 1),
        "threads_baseline": f"bare asyncio loop over a ThreadPoolExecutor of {NUM_THREADS}",
        "threads_ratio": round(ratio_of(*threaded), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=65_000, help="how many at once; %(default)s by default")
    parser.add_argument("--rounds", type=int, default=3, help="%(default)s by default")
    parser.add_argument("--quick", action="store_true", help="few episodes, to see that it runs")
    options = parser.parse_args()
    numbers = (64, 1) if options.quick else (options.episodes, options.rounds)
    print(json.dumps(asyncio.run(measure(*numbers))))


if __name__ == "__main__":
    main()
