import json
import pickle

import pytest

from turngym.envs.base import Action
from turngym.envs.checks import check_env
from turngym.envs.factory import EnvFactory
from turngym.envs.messages import Message
from turngym.envs.resolution import resolve
from turngym.envs.task import Task, seeded_tasks
from turngym.envs.tools.calls import ParsedAnswer, ToolCall
from turngym.envs.tools.tool_env import ToolEnv
from turngym.envs.tools.toolbox import ToolRules
from turngym.envs.tools.turn import capped
from turngym.errors import ConfigError, EnvError

TASK = Task("t", prompt="What is 2 + 3?", label="5")


class Sums:
    """Adds numbers."""

    def __init__(self) -> None:
        self.num_sums = 0

    def add(self, a: int, b: int) -> int:
        """Add two numbers."""
        self.num_sums += 1
        return a + b


def say(text: str, times: int = 1) -> str:
    """Repeat a text."""
    return text * times


class Judged(ToolEnv):
    """Wants the sum, and a tool that was used."""

    def __init__(self, max_turns: int = 4, system_prompt: str | None = None) -> None:
        super().__init__(tools=Sums, max_turns=max_turns, system_prompt=system_prompt)

    def tasks(self, split, seed):
        tasks = seeded_tasks("Judged", split, seed)
        return [Task(task.id, prompt=f"{task.id}: 2 + 3?", label="5") for task in tasks[:80]]

    async def reward(self, answer: str) -> float:
        return float(answer == self.task.label and self.state(Sums).num_sums > 0)


def call(name, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def begun(env, task=TASK):
    observation, info = await env.reset(options={"task": task})
    return observation, info


async def test_an_episode_calls_reads_and_answers():
    env = Judged(system_prompt="Use tools.")
    observation, info = await begun(env)
    assert observation == [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "What is 2 + 3?"}]
    assert [tool["function"]["name"] for tool in info["tools"]] == ["add"]
    results, reward, terminated, truncated, _ = await env.step("Now: " + call("add", a=2, b=3) + call("add", a="x"))
    assert results == [
        Message(role="tool", name="add", tool_call_id="call_0", content="5"),
        Message(
            role="tool",
            name="add",
            tool_call_id="call_1",
            content="Error: add was not called: a: Input should be a valid integer, unable to parse string as an "
            "integer, got 'x'; b is missing",
        ),
    ]
    assert (reward, terminated, truncated) == (0.0, False, False)
    results, *_ = await env.step(call("add", a=1, b=1))
    assert results[0]["tool_call_id"] == "call_2"  # ids go on
    end = await env.step("5")
    assert end == ("", 1.0, True, False, {"extra_logs": {"tool_calls": 3, "tool_errors": 1}})
    with pytest.raises(EnvError, match="no episode running"):
        await env.step("5")
    await env.close()


async def test_on_the_last_turn_nothing_is_run_and_what_a_tool_said_is_never_scored():
    env = Judged(max_turns=2)
    await begun(env)
    await env.step(call("add", a=2, b=3))
    end = await env.step("4 " + call("add", a=2, b=3))
    assert end[1:4] == (0.0, False, True)
    assert env.state(Sums).num_sums == 1
    await env.close()


async def test_the_reward_function_sees_prompt_and_answer_and_no_tool(tmp_path):
    (tmp_path / "reward.py").write_text(
        "def reward_func(queries, prompts, labels):\n"
        "    is_right = (queries, labels) == (['What is 2 + 3?5'], ['5'])\n"
        "    return {'rewards': [2.0 * is_right], 'scores': [1.0], 'extra_logs': {'length': len(prompts[0])}}\n"
    )
    env = ToolEnv(tools=say, remote_url=str(tmp_path / "reward.py"))
    await begun(env)
    await env.step(call("say", text="5"))
    end = await env.step("<think>5 it said</think>5")
    assert end == (
        "",
        2.0,
        True,
        False,
        {"score": 1.0, "extra_logs": {"length": 14.0, "tool_calls": 1, "tool_errors": 0}},
    )
    await env.close()


async def test_long_results_and_many_calls_are_cut_and_say_so():
    env = ToolEnv(tools=[say], max_output_chars=20, max_calls=2)
    await begun(env)
    results, *_ = await env.step(call("say", text="ab", times=50) + call("say", text="b") + 3 * call("say", text="c"))
    assert results[0]["content"] == "ababababab\n[80 of 100 characters left out]\nababababab"
    assert results[1]["content"] == "b"
    assert [result["content"] for result in results[2:]] == ["Not run, and 2 more: at most 2 calls of one answer are."]
    await env.close()


@pytest.mark.parametrize("text", ['"\\ud800"', "NaN", "-Infinity"])
async def test_what_python_reads_and_json_does_not_know_goes_back_to_the_model(text):
    env = ToolEnv(tools=[say])
    await begun(env)
    results, *_ = await env.step(f'<tool_call>{{"name": "say", "arguments": {{"text": {text}}}}}</tool_call>')
    assert "say was not called: its arguments are no JSON" in results[0]["content"]
    await env.close()


def test_what_is_cut_is_counted():
    assert capped("abc", 3) == "abc"
    assert capped("abcdefg", 3) == "ab\n[4 of 7 characters left out]\ng"
    assert capped("\ud800", 9) == "?"


async def test_the_models_own_parser_goes_before_the_default_one():
    env = ToolEnv(tools=[say])
    await begun(env)
    parsed = ParsedAnswer("", (ToolCall("say", {"text": "x"}, id="abc"),))
    action = pickle.loads(pickle.dumps(Action("[say x]", parsed=parsed)))
    results, *_ = await env.step(action)
    assert results == [Message(role="tool", name="say", tool_call_id="abc", content="x")]
    await env.close()


async def test_an_episode_needs_a_prompt():
    env = ToolEnv(tools=[say])
    with pytest.raises(EnvError, match="needs a task with a prompt"):
        await env.reset(seed=1)
    with pytest.raises(ConfigError, match="has no tasks of its own"):
        env.tasks("train", 0)


def test_it_keeps_the_contract():
    assert check_env(EnvFactory("Judged", Judged), timeout_s=30.0) == []


def test_tools_are_found_by_name(tmp_path):
    file = tmp_path / "my_tools.py"
    file.write_text("def one() -> int:\n    return 1\n\nclass Two:\n    def two(self) -> int:\n        return 2\n")
    env = resolve("ToolEnv", {"tools": f"{file}:one, {file}:Two"})()
    assert [schema["function"]["name"] for schema in env.new_toolbox().schemas] == ["one", "two"]
    with pytest.raises(ConfigError, match="needs tools"):
        resolve("ToolEnv", {})


@pytest.mark.parametrize("wrong", [{"max_turns": 0}, {"max_calls": 0}, {"call_timeout_s": 0.0}, {"after_calls": "no"}])
def test_rules_are_checked(wrong):
    with pytest.raises(ConfigError):
        ToolRules(**wrong)
