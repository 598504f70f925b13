"""A server with one session, an engine that follows a script, and the multi-turn executor's episode of the same."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from turngym.agents import ChatAgent, Sampling
from turngym.agents.frameworks.factory import resolve_agent
from turngym.envs.base import Env
from turngym.envs.task import Task
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.trajectory import Trajectory
from turngym.executors.own_agents.openai_server import AgentEpisodes
from turngym.executors.pools.env_pool import EnvPool

SAMPLING = Sampling(max_tokens=512)
ROOT = Path(__file__).resolve().parents[3]
ARRAYS = ("token_ids", "is_action", "logprobs", "versions", "turn")


class Script:
    """An engine that says one text after the other, byte by byte; it notes what it was shown."""

    def __init__(self, tokenizer, texts: Sequence[str]) -> None:
        self.tokenizer, self.agent, self.texts = tokenizer, ChatAgent(tokenizer), list(texts)
        self.engine = ScriptedEngine(self._answer, max_context=16384)

    def _answer(self, request) -> Reply:
        text = self.texts[request.index]
        ids = [token for byte in text for token in self.tokenizer.encode(byte, add_special_tokens=False)]
        ids += self.agent.end_of_turn_ids
        return Reply(ids, -np.linspace(0.1, 1.0, len(ids)))

    def shown(self) -> list[str]:
        return [self.tokenizer.decode(request.prompt_ids) for request in self.engine.requests]


class Replay(Env):
    """Says what a conversation's other side said: the messages between two answers of a model."""

    def __init__(self, messages: Sequence[dict], tools: list[dict] | None) -> None:
        self._parts: list[list[dict]] = [[]]
        for message in messages:
            if message["role"] == "assistant":
                self._parts.append([])
            else:
                self._parts[-1].append(message)
        self._tools = tools
        self._next = 1

    def reset(self, *, seed=None, options=None):
        return self._parts[0], {"tools": self._tools} if self._tools else {}

    def step(self, action):
        said, self._next = self._parts[self._next], self._next + 1
        return said, 0.0, self._next == len(self._parts), False, {}


async def replayed(script: Script, task: Task, messages, tools, sampling) -> Trajectory:
    pool = EnvPool(1, close_timeout_s=1.0)
    try:
        executor = MultiTurn(script.agent, lambda: Replay(messages, tools), pool, Limits())
        return await executor.run(task, 0, script.engine, sampling)
    finally:
        pool.close()


async def served(script: Script, task: Task, spec: str, **kwargs) -> Trajectory:
    user_agent = resolve_agent(spec, kwargs)()
    executor = AgentEpisodes(script.agent, user_agent, Limits(max_seconds=60), name=spec)
    await executor.start()
    try:
        return await executor.run(task, 0, script.engine, SAMPLING)
    finally:
        await executor.close()


def check_same(ours: Trajectory, theirs: Trajectory) -> None:
    """Both hold the same tokens, sampled the same way."""
    assert ours.failure is None, ours.failure
    assert theirs.failure is None, theirs.failure
    assert ours.num_turns == theirs.num_turns
    assert len(ours.sequences) == len(theirs.sequences)
    for one, other in zip(ours.sequences, theirs.sequences, strict=True):
        for array in ARRAYS:
            assert getattr(one, array).tobytes() == getattr(other, array).tobytes(), array
        assert one.samplings == other.samplings
    assert ours.turn_ends == theirs.turn_ends


@pytest.fixture
def script_of(tokenizer_of, template_text) -> Callable[..., Script]:
    """Make an engine of a public model's template that says these texts."""
    return lambda texts, template="qwen2_5": Script(tokenizer_of(template_text(template)), texts)


@pytest.fixture
def play() -> Callable[..., Trajectory]:
    """Run an episode of a user's agent: `await play(script, task, "func:...", **agent_args)`."""

    async def run(script, task, spec, **kwargs):
        async with asyncio.timeout(120):
            return await served(script, task, spec, **kwargs)

    return run


@pytest.fixture
def check_against_multi_turn(script_of) -> Callable[..., None]:
    """Compare an episode with the multi-turn executor's of the same conversation: its messages, or a copy of them."""

    async def check(trajectory: Trajectory, texts, *, tools=None, template="qwen2_5") -> None:
        async with asyncio.timeout(120):
            sampling = trajectory.sequences[0].samplings[0]  # with the stop strings of the requests
            script = script_of(texts, template)
            other = await replayed(script, trajectory.task, trajectory.messages, tools, sampling)
        check_same(trajectory, other)

    return check


@pytest.fixture
def agent_file(tmp_path: Path) -> Callable[[str], str]:
    """Write a file of a user's and return its path."""

    def write(text: str, name: str = "my_agent.py") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


@pytest.fixture
def outside_the_source(monkeypatch) -> None:
    """Import as if the working directory were not the root of this project, whose folder `agents` is no package."""
    kept = [path for path in sys.path if path and Path(path).resolve() != ROOT]
    monkeypatch.setattr(sys, "path", kept)
    loaded = sys.modules.get("agents")
    if loaded is not None and str(ROOT) in str(loaded.__file__):
        monkeypatch.delitem(sys.modules, "agents")
