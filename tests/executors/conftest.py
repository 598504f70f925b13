"""A conversation whose tokens are bytes, an environment that counts, and what runs them."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from turngym.agents.sequence import SequenceBuilder
from turngym.agents.tokenizer import load_tokenizer
from turngym.envs.base import Action, Env
from turngym.envs.messages import RawText
from turngym.envs.task import Task
from turngym.errors import TemplateError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.pools.env_pool import EnvPool

MERGED = 256  # one token for the two bytes of "ab": another way to write them


class ByteConversation:
    """`role:content|` per message, `>` before each completion; every byte is a token."""

    def __init__(self) -> None:
        self._builder = SequenceBuilder()
        self._turn = -1
        self.messages: list[Any] = []

    def observe(self, observation, *, is_last=False):
        if isinstance(observation, RawText):
            text = str(observation)
        else:
            if any(message["content"] == "unrenderable" for message in observation):
                raise TemplateError("no template for this")
            self.messages += observation
            text = "".join(f"{message['role'][0]}:{message['content']}|" for message in observation)
        self._builder.add_context(list((text + ("" if is_last else ">")).encode()), self._turn)

    def prompt_ids(self):
        return self._builder.token_ids()

    def prompt_images(self):
        return ()

    def record(self, completion, sampling, *, with_query=False):
        self._turn += 1
        self._builder.add_completion(completion, sampling, self._turn)
        text = decoded(completion.token_ids)
        self.messages.append({"role": "assistant", "content": text})
        query = decoded(self._builder.token_ids()) if with_query else None
        return Action(text, query=query, is_cut=completion.stop_reason.value == "length")

    def fork(self):
        twin = ByteConversation()
        twin._builder, twin._turn, twin.messages = self._builder.fork(), self._turn, list(self.messages)
        return twin

    def sequences(self):
        return (self._builder.build(),)


class ByteAgent:
    def begin(self):
        return ByteConversation()


class Echo(Env):
    """Answers each action with a dot and reward 1, ends as terminated after `turns` steps; counts its calls."""

    calls: list[str] = []

    def __init__(self, turns: int = 2, *, calls: list[str] | None = None) -> None:
        self._turns = turns
        self._step = 0
        self.calls = [] if calls is None else calls

    def reset(self, *, seed=None, options=None):
        self.calls.append("reset")
        return options["task"].prompt or "go", {}

    def step(self, action):
        self.calls.append(f"step {action}")
        self._step += 1
        return ".", 1.0, self._step >= self._turns, False, {}

    def close(self):
        self.calls.append("close")


def decoded(token_ids) -> str:
    return b"".join(b"ab" if token == MERGED else bytes([token]) for token in token_ids.tolist()).decode("latin-1")


@pytest.fixture
def byte_agent() -> ByteAgent:
    return ByteAgent()


@pytest.fixture
def echo() -> type[Echo]:
    return Echo


@pytest.fixture
def pool():
    pool = EnvPool(4, close_timeout_s=1.0)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return load_tokenizer(str(tiny_model))


@pytest.fixture
def saying(tokenizer):
    """Make an engine that says these texts one after the other, with logprobs -1, -2, ... within each."""

    def make(*texts: str, **options: Any) -> ScriptedEngine:
        answers = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return ScriptedEngine([Reply(ids, -np.arange(1.0, len(ids) + 1)) for ids in answers], **options)

    return make


@pytest.fixture
def multi_turn(pool: EnvPool) -> Callable[..., MultiTurn]:
    """Make an executor: `multi_turn(factory, max_turns=3, ...)`."""

    def make(factory, **limits) -> MultiTurn:
        return MultiTurn(ByteAgent(), factory, pool, Limits(**limits))

    return make


@pytest.fixture
def task() -> Task:
    return Task(id="t", prompt="go")


@pytest.fixture
def play(multi_turn, task):
    """Run one episode: `await play(factory, engine, sampling, **limits)`."""

    async def run(factory, engine, sampling, **limits):
        async with asyncio.timeout(60):
            return await multi_turn(factory, **limits).run(task, 0, engine, sampling)

    return run


@pytest.fixture
def nan_equal():
    def check(a: np.ndarray, b: np.ndarray) -> bool:
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()

    return check
