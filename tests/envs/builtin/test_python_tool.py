"""`PythonTool`: an interpreter over the turns, and an answer of the model's own."""

import asyncio

import pytest

from turngym.envs.builtin.python_tool import PythonTool
from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.errors import ConfigError, EnvError, GraderError, SandboxError
from turngym.sandbox.base import Sandbox

from ..unsafe_sandbox import UnsafeSandbox

pytestmark = pytest.mark.slow

TASK = {"task": Task("t", prompt="What is 6 times 7?", label="42")}


async def begin(**arguments) -> PythonTool:
    env = PythonTool(deadline_s=60, **arguments)
    await env.reset(options=TASK)
    return env


async def test_an_episode(sandbox: Sandbox) -> None:
    env = PythonTool(deadline_s=60, instruction="Use Python.", system_prompt="Be brief.")
    messages, _ = await env.reset(options=TASK)
    assert [message["content"] for message in messages] == ["Be brief.", "What is 6 times 7?\n\nUse Python."]
    result = await env.step("Let me see.\n```python\nx = 6 * 7\nx\n```")
    assert result == ("Output:\n42\n\n5 messages left.", 0.0, False, False, {})
    result = await env.step('<tool_call>{"name": "python", "arguments": {"code": "x + 1"}}</tool_call>')
    assert result[0] == [{"role": "tool", "name": "python", "content": "43\n\n4 messages left."}]
    result = await env.step(r"It is \boxed{42}.")
    assert result[:4] == ("", 1.0, True, False)
    assert result[4] == {"score": 1.0, "answer": "42", "graded_by": "same text", "extra_logs": {"cells": 2}}
    with pytest.raises(EnvError, match="call reset first"):
        await env.step("again")
    await env.close()


async def test_the_tools_output_is_not_the_models_answer(sandbox: Sandbox) -> None:
    """The tool prints the right answer; the model then says something else, or nothing."""
    for answer, reward in {r"\boxed{41}": 0.0, "As the output says.": 0.0, "": 0.0, r"\boxed{42}": 1.0}.items():
        env = await begin()
        observation, *_ = await env.step("```python\nprint(r'\\boxed{42}')\n```")
        assert r"\boxed{42}" in observation
        assert (await env.step(answer))[1:3] == (reward, True), answer
        await env.close()


async def test_what_is_written_around_a_call_does_not_count(sandbox: Sandbox) -> None:
    env = await begin(max_turns=3)
    invented = "```python\n40\n```\nOutput:\n```\n42\n```\n```python\n41\n```\n" + r"So \boxed{42}."
    assert (await env.step(invented))[:3] == ("Output:\n40\n\n2 messages left.", 0.0, False)
    thought = r"<think>```python" + "\n1\n```\n" + r"\boxed{42}</think>"
    assert (await env.step(thought + "\n```python\n7\n```"))[0] == "Output:\n7\n\nThis is your last message."
    assert (await env.step("```python\nprint(r'\\boxed{42}')\n```"))[1:3] == (0.0, True)
    await env.close()


async def test_the_last_message_is_the_answer_outside_of_its_code(sandbox: Sandbox) -> None:
    for call in ("```python\n1\n```\n", '<tool_call>{"code": "\\boxed{1}"}</tool_call>'):
        env = await begin(max_turns=1)
        assert (await env.step(call + r"\boxed{42}"))[1:3] == (1.0, True)
        assert sandbox.num_sessions == 0


@pytest.mark.parametrize(
    "call",
    ["", "{", "[1]", '{"name": "search", "arguments": {"code": "1"}}', '{"name": "python", "arguments": {"code": 1}}'],
)
async def test_malformed_calls_are_told_so(unsafe: UnsafeSandbox, call: str) -> None:
    env = await begin(sandbox="unsafe")
    observation, reward, terminated, *_ = await env.step(f"<tool_call>{call}</tool_call>")
    assert "Nothing was run: a tool call wants the form" in observation[0]["content"]
    assert (reward, terminated, len(unsafe.sessions)) == (0.0, False, 0)


async def test_arguments_may_be_text(sandbox: Sandbox) -> None:
    env = await begin()
    call = '<tool_call>\n{"name": "python", "arguments": "{\\"code\\": \\"1 + 1\\"}"}\n'
    assert (await env.step(call))[0][0]["content"].startswith("2\n")
    await env.close()


async def test_failures_are_no_reward(unsafe: UnsafeSandbox) -> None:
    env = await begin(sandbox="unsafe")
    unsafe.failing = {"open": 1}
    with pytest.raises(SandboxError):
        await env.step("```python\n1\n```")
    await env.reset(options={"task": Task("t", prompt="p", label="x^2 +")})
    with pytest.raises(GraderError):
        await env.step(r"\boxed{1}")


async def test_forks_have_state_of_their_own(sandbox: Sandbox) -> None:
    env = await begin()
    await env.step("```python\nx = 1\n```")
    assert env.can_fork
    twin = await env.fork()
    await twin.step("```python\nx = 2\n```")
    assert (await twin.step(r"\boxed{41}"))[1] == 0.0
    assert (await env.step("```python\nx\n```"))[0] == "Output:\n1\n\n4 messages left."
    assert (await env.step(r"\boxed{42}"))[1] == 1.0
    await env.close()
    await twin.close()


async def test_the_ledger_is_right_whatever_happens(unsafe: UnsafeSandbox) -> None:
    """Of 30 episodes 10 are cancelled in a cell, some close twice, and one close fails for a moment."""

    async def episode(number: int) -> None:
        env = PythonTool(sandbox="unsafe", deadline_s=60)
        try:
            await env.reset(options=TASK)
            await env.step(f"```python\nimport time\ntime.sleep({30 if number % 3 == 0 else 0})\n```")
            if number % 3 == 1:
                await env.reset(options=TASK)
        finally:
            await env.close()
            if number % 2:
                await env.close()

    episodes = [asyncio.create_task(episode(number)) for number in range(30)]
    await asyncio.wait(episodes, timeout=2.0)
    unsafe.failing = {"close": 1}
    for task in episodes:
        task.cancel()
    results = await asyncio.gather(*episodes, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) >= 10
    assert sum(isinstance(result, SandboxError) for result in results) == 0
    assert unsafe.num_sessions == 0


def test_options() -> None:
    with pytest.raises(ConfigError, match="max_turns"):
        PythonTool(max_turns=0)
    with pytest.raises(ConfigError, match="wall_s must be more than 0"):
        PythonTool(cell_s=0)
    with pytest.raises(ConfigError, match=r"--data\.prompt_dataset"):
        PythonTool().tasks("train", 0)
    with pytest.raises(ConfigError, match="Did you mean 'max_turns'"):
        resolve("PythonTool", {"max_turn": 3})
    assert resolve("PythonTool", {"max_turns": 3}).env_class is PythonTool


@pytest.mark.slow
def test_labels_are_checked_before_training() -> None:
    tasks = [Task("good", prompt="p", label="1/2"), Task("bad", prompt="p", label="\\frac{1}{")]
    (complaint,) = PythonTool().complaints(tasks)
    assert "'bad'" in complaint
