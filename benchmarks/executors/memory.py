"""Memory of an episode that waits for a completion, after 1 to 64 turns, against the bytes of its bare token arrays.

A turn is 200 tokens: half sampled, half shown. The engine holds nothing, so that what is counted (by tracemalloc:
Python's objects and numpy's arrays) is what the executor, the conversation and a small environment hold. The bare
arrays are those of the finished sequence: ids, mask, logprobs, versions and turns, 17 bytes a token.
"""

import argparse
import asyncio
import gc
import json
import platform
import tracemalloc
from dataclasses import dataclass

import numpy as np
import smollm2

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.chat import ChatAgent
from turngym.agents.tokenizer import Codec
from turngym.envs.base import AsyncEnv
from turngym.envs.task import Task
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.pools.env_pool import EnvPool

GOAL = 2.0  # times the bare arrays' bytes
TURN_TOKENS = 200
MAX_CONTEXT = 1 << 15
BYTES_PER_TOKEN = 17
LINE = "the tool printed lines of a log where test number failed with error in file at line and then it said"
WORDS = LINE.split()
END = "<|im_end|>"


class Engine:
    """Answers at once, until an episode has had its turns; holds nothing of what it was asked."""

    max_context = MAX_CONTEXT

    def __init__(self, codec: Codec, num_turns: int) -> None:
        said = codec.encode(" ".join(WORDS * 20))[: TURN_TOKENS // 2 - 1]
        self._token_ids = np.concatenate([said, codec.encode(END)])
        self._num_turns = num_turns
        self._never = asyncio.Event()
        self.num_waiting = 0
        self.num_tokens = 0  # in the prompts of those that wait

    async def generate(self, prompt_ids, sampling, images=None, request="") -> Completion:
        if int(request.rpartition("/")[2]) == self._num_turns:
            self.num_waiting += 1
            self.num_tokens += len(prompt_ids)
            del prompt_ids
            await self._never.wait()
        ids = self._token_ids.copy()
        versions = np.zeros(len(ids), np.int32)
        return Completion(ids, np.full(len(ids), -0.5, np.float32), versions, StopReason.STOP)


class Tool(AsyncEnv):
    """Says a text of its own to every action."""

    def __init__(self, num_words: int) -> None:
        self._num_words = num_words
        self._draws = np.random.default_rng(0)

    async def reset(self, *, seed=None, options=None):
        return "Begin.", {}

    async def step(self, action):
        return " ".join(self._draws.choice(WORDS, self._num_words)), 0.0, False, False, {}


@dataclass(frozen=True)
class Held:
    """What one waiting episode holds."""

    kib: float
    bare_kib: float


async def held(agent: ChatAgent, codec: Codec, num_turns: int, num_episodes: int) -> Held:
    """Play the turns with all episodes, and count what they hold while they wait for one more completion."""
    num_words = _num_words(codec)
    limits = Limits(max_turns=num_turns + 1, max_context=MAX_CONTEXT, max_seconds=3600.0, generate_timeout_s=3600.0)
    executor = MultiTurn(agent, lambda: Tool(num_words), EnvPool(), limits)
    engine = Engine(codec, num_turns)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    runs = [
        asyncio.ensure_future(executor.run(Task(id=str(index)), 0, engine, Sampling(max_tokens=TURN_TOKENS)))
        for index in range(num_episodes)
    ]
    while engine.num_waiting < num_episodes:
        done = [run.result() for run in runs if run.done()]
        if done:
            raise RuntimeError(f"an episode ended as {done[0].end_reason}: {done[0].failure}")
        await asyncio.sleep(0.01)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    for run in runs:
        run.cancel()
    await asyncio.gather(*runs, return_exceptions=True)
    return Held(grown / num_episodes / 1024, engine.num_tokens * BYTES_PER_TOKEN / num_episodes / 1024)


def _num_words(codec: Codec) -> int:
    """Return how many words of an observation fill its half of a turn."""
    return max(1, round(TURN_TOKENS / 2 * len(WORDS) / len(codec.encode(" ".join(WORDS)))))


def measure(turns: tuple[int, ...], num_episodes: int) -> dict[str, object]:
    tokenizer = smollm2.tokenizer()
    agent, codec = ChatAgent(tokenizer), Codec(tokenizer)
    tracemalloc.start()
    asyncio.run(held(agent, codec, turns[0], num_episodes))  # fills the caches that episodes share
    found = {}
    print(f"{'turns':>6} {'KiB':>10} {'bare KiB':>10} {'ratio':>7}")
    for num_turns in turns:
        found[num_turns] = now = asyncio.run(held(agent, codec, num_turns, num_episodes))
        print(f"{num_turns:>6} {now.kib:>10.1f} {now.bare_kib:>10.1f} {now.kib / now.bare_kib:>7.2f}", flush=True)
    least, most = turns[0], turns[-1]
    last = found[most]
    ratio = last.kib / last.bare_kib
    return {
        "name": "executors/memory",
        "value": round(last.kib, 1),
        "unit": f"KiB per waiting episode of {most} turns",
        "baseline": "bare token arrays",
        "baseline_value": round(last.bare_kib, 1),
        "ratio": round(ratio, 2),
        "goal": GOAL,
        "met": ratio <= GOAL,
        "where": f"Python {platform.python_version()}, {type(tokenizer).__name__} of {len(tokenizer)} tokens",
        "kib_by_turns": {str(num_turns): round(now.kib, 1) for num_turns, now in found.items()},
        "kib_per_turn": round((last.kib - found[least].kib) / (most - least), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few episodes and turns, to see that it runs")
    quick = parser.parse_args().quick
    print(json.dumps(measure(*(((1, 4), 8) if quick else ((1, 4, 16, 64), 100)))))


if __name__ == "__main__":
    main()
