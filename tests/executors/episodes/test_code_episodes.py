"""Episodes whose environment runs the model's code in the local sandbox."""

import asyncio
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.envs.builtin.code_sandbox import CodeSandbox
from turngym.envs.builtin.python_tool import PythonTool
from turngym.envs.task import Task
from turngym.errors import SandboxError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.branching import Branching
from turngym.executors.episodes.trajectory import EndReason, FailureKind
from turngym.executors.episodes.tree import run_attempts
from turngym.sandbox.registration import SANDBOXES, close_shared, shared_sandbox

SAMPLING = Sampling(max_tokens=200)
TESTS = {"entry_point": "add", "calls": [{"args": [1, 2], "expected": 3}]}
RIGHT = "```python\ndef add(a, b): return a + b\n```"


class Broken:
    async def start(self) -> None:
        raise SandboxError("it is broken")

    async def close(self) -> None:
        pass


def says(*texts: str) -> ScriptedEngine:
    return ScriptedEngine([list(text.encode()) for text in texts])


def play_one(multi_turn, factory, task: Task, *texts: str):
    async def run():
        try:
            trajectory = await multi_turn(factory).run(task, 0, says(*texts), SAMPLING)
            return trajectory, (await shared_sandbox("local")).num_sessions
        finally:
            await close_shared()

    return asyncio.run(run())


def test_a_program_is_written_tried_and_submitted(multi_turn) -> None:
    task = Task("t", prompt="Add.", label=TESTS, data={"public_tests": TESTS})
    trajectory, num_sessions = play_one(multi_turn, CodeSandbox, task, "```run\n1+1\n```", RIGHT, "SUBMIT")
    assert trajectory.end_reason is EndReason.TERMINATED, trajectory.failure
    assert trajectory.rewards_per_turn.tolist() == [0.0, 0.0, 1.0]
    assert (trajectory.score, trajectory.extra_logs["solved"]) == (1.0, 1.0)
    assert "All 1 public tests passed." in trajectory.messages[-2]["content"]
    assert num_sessions == 0


@pytest.mark.slow
def test_the_tools_output_is_neither_an_action_nor_an_answer(multi_turn) -> None:
    task = Task("t", prompt="6 times 7?", label="42")
    call = "```python\nprint(r'\\boxed{' + str(6 * 7) + '}')\n```"
    trajectory, num_sessions = play_one(
        multi_turn, partial(PythonTool, deadline_s=60), task, call, "As the output says."
    )
    assert trajectory.rewards_per_turn.tolist() == [0.0, 0.0], trajectory.failure
    (sequence,) = trajectory.sequences
    actions = bytes(np.asarray(sequence.token_ids)[sequence.is_action].tolist())
    assert b"\\boxed{42}" in bytes(sequence.token_ids.tolist())
    assert actions == call.encode() + b"As the output says."
    assert num_sessions == 0


def test_a_sandbox_that_fails_is_a_failed_attempt(multi_turn, monkeypatch) -> None:
    task = Task("t", prompt="Add.", label=TESTS)
    monkeypatch.setitem(SANDBOXES._entries, "broken", Broken)
    trajectory, _ = play_one(multi_turn, partial(CodeSandbox, sandbox="broken", max_turns=1), task, RIGHT)
    assert trajectory.failure.kind is FailureKind.ENV
    assert "SandboxError: it is broken" in trajectory.failure.message


def test_an_interpreter_forks_with_its_episode_and_its_copies_go_ways_of_their_own(multi_turn) -> None:
    """What was set before the fork is there after it, in both; what one of them changes the other does not see."""
    said = {
        "t/0/0": "```python\nx = [40]\n```",
        "t/0/1": "```python\nx.append(1); print('first sees', x)\n```",
        "t/1/1": "```python\nx.append(2); print('second sees', x)\n```",
        "t/0/2": "```python\nprint(sum(x))\n```",
        "t/1/2": "```python\nprint(sum(x))\n```",
        "t/0/3": r"\boxed{41}",
        "t/1/3": r"\boxed{42}",
    }

    async def run():
        try:
            executor = multi_turn(partial(PythonTool, deadline_s=60))
            engine = ScriptedEngine(lambda request: list(said[request.name].encode()))
            task = Task("t", prompt="40 and 2?", label="42")
            seat = nullcontext(engine)
            leaves = await run_attempts(executor, task, (0, 1), lambda _: seat, SAMPLING, branching=Branching((0,)))
            return leaves, (await shared_sandbox("local")).num_sessions, len(engine.requests)
        finally:
            await close_shared()

    leaves, num_sessions, num_requests = asyncio.run(run())
    assert [leaf.reward for leaf in leaves] == [0.0, 1.0], [leaf.failure for leaf in leaves]
    assert leaves[1].branch_of == (0, 0)
    outputs = [[m["content"].splitlines()[1] for m in leaf.messages[2:-1:2]] for leaf in leaves]
    assert outputs == [
        ["(no output)", "first sees [40, 1]", "41"],
        ["(no output)", "second sees [40, 2]", "42"],
    ]
    assert num_requests == len(said)
    assert num_sessions == 0
