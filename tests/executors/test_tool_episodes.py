"""Episodes with tools as a run plays them: a scripted engine, the chat agent, the executor."""

import asyncio
import json

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turngym.agents.base import Sampling
from turngym.agents.chat import ChatAgent
from turngym.envs.factory import EnvFactory
from turngym.envs.task import Task
from turngym.envs.tools.tool_env import ToolEnv
from turngym.errors import EnvError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.limits import Limits
from turngym.executors.multi_turn import MultiTurn
from turngym.executors.trajectory import EndReason, FailureKind

TEMPLATE = (
    "{% if tools %}<|start|>tools:{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)
TASK = Task("t", prompt="2 + 3?", label="5")


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|start|>", "<|end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE)


class Sum(ToolEnv):
    """Rewards the label."""

    def __init__(self) -> None:
        super().__init__(tools=[add, lost])

    async def reward(self, answer: str) -> float:
        return float(answer == self.task.label)


def add(a: int, b: int) -> int:
    return a + b


def lost() -> int:
    raise EnvError("the database is gone")


def call(name, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def play(tokenizer, pool, answers, **limits):
    replies = [tokenizer.encode(f"{answer}<|end|>") for answer in answers]
    executor = MultiTurn(ChatAgent(tokenizer), EnvFactory("Sum", Sum), pool, Limits(**limits))
    async with asyncio.timeout(60):
        return await executor.run(TASK, 0, ScriptedEngine(replies), Sampling(max_tokens=400))


async def test_only_what_was_sampled_is_an_action(tokenizer, pool):
    answers = [call("add", a=2) + call("add", a=2, b=3), "<tool_call>{</tool_call>", "5"]
    trajectory = await play(tokenizer, pool, answers)
    assert trajectory.end_reason is EndReason.TERMINATED
    assert trajectory.rewards_per_turn.tolist() == [0.0, 0.0, 1.0]
    assert trajectory.extra_logs == {"tool_calls": 3.0, "tool_errors": 2.0}
    (sequence,) = trajectory.sequences
    context = tokenizer.decode(sequence.token_ids[~sequence.is_action])
    assert tokenizer.decode(sequence.token_ids[sequence.is_action]) == "".join(f"{each}<|end|>" for each in answers)
    assert context.startswith('<|start|>tools:[{"type": "function", "function": {"name": "add"')
    assert "<|start|>tool:5<|end|>" in context
    assert "b is missing" in context
    # Piece by piece: which tokens are whose.
    edges = np.flatnonzero(np.diff(sequence.is_action.astype(int))) + 1
    pieces = [tokenizer.decode(piece) for piece in np.split(sequence.token_ids, edges)]
    assert pieces[1::2] == [f"{each}<|end|>" for each in answers]
    assert pieces[4].startswith("<|start|>tool:Nothing was run")


async def test_a_turn_limit_of_the_run_ends_it_without_a_reward(tokenizer, pool):
    trajectory = await play(tokenizer, pool, [call("add", a=1, b=1)] * 2, max_turns=2)
    assert trajectory.end_reason is EndReason.MAX_TURNS
    assert trajectory.rewards_per_turn.tolist() == [0.0, 0.0]


async def test_a_failure_behind_a_tool_is_no_reward(tokenizer, pool):
    trajectory = await play(tokenizer, pool, [call("lost"), "5"])
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.ENV
    assert "the database is gone" in trajectory.failure.message
    assert len(trajectory.rewards_per_turn) == 0
