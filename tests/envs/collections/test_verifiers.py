"""`verifiers/*`, with the package itself: one turn, several, and tools, scored by the rubric of each."""

import asyncio
import signal
import sys
import threading
from pathlib import Path

import pytest

from turngym.envs.checks import check_env
from turngym.envs.collections import verifiers_loading
from turngym.envs.resolution import resolve
from turngym.errors import ConfigError, EnvError, RewardError, UnknownNameError

verifiers = pytest.importorskip("verifiers", reason="needs the package: pip install 'turngym[verifiers]'")
if not verifiers.__version__.startswith("0.1.9"):
    pytest.skip(f"needs verifiers 0.1.9, here is {verifiers.__version__}", allow_module_level=True)

MODULE = '''
import verifiers as vf
from datasets import Dataset

ROWS = [{"question": f"What is {a}+{b}?", "answer": str(a + b), "info": {"a": a}} for a in range(8) for b in range(8)]
CLEANED = []

def right(completion, answer, **kwargs):
    """Also asynchronous ones are rewards."""
    if "crash" in completion[-1]["content"]:
        raise RuntimeError("judge is down")
    return float(answer in completion[-1]["content"])

async def short(completion):
    return float(len(completion[-1]["content"]) < 10)

class Asks(vf.MultiTurnEnv):
    async def setup_state(self, state):
        state["tries"] = 0
        return state

    async def env_response(self, messages, state, **kwargs):
        state["tries"] += 1
        text = messages[-1]["content"]
        reply = [{"role": "user", "content": f"{state['tries']}: no"}]
        if text == "rewrite":
            messages[0]["content"] = "all new"
            return reply
        if text == "stop":
            state["final_env_response"] = [{"role": "user", "content": "bye"}]
        if text == "break":
            raise vf.ToolError("broken")
        return reply

    @vf.stop
    async def is_right(self, state):
        return bool(state["trajectory"]) and state["answer"] in state["trajectory"][-1]["completion"][-1]["content"]

    @vf.cleanup
    async def clean(self, state):
        CLEANED.append(state["example_id"])

def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

def load_environment(kind="single", rows=64, held_out=False, weights=(1.0, 0.5)):
    data = Dataset.from_list(ROWS[:rows])
    rubric = vf.Rubric(funcs=[right, short], weights=list(weights))
    kwargs = {"dataset": data, "rubric": rubric, "system_prompt": "Add."}
    if held_out:
        kwargs["eval_dataset"] = Dataset.from_list(ROWS[-4:])
    if kind == "group":
        def best(completions, **kwargs):
            return [0.0 for _ in completions]
        rubric.add_reward_func(best)
    if kind == "multi":
        return Asks(max_turns=3, **kwargs)
    if kind == "tools":
        return vf.ToolEnv(tools=[add], max_turns=4, **kwargs)
    return vf.SingleTurnEnv(**kwargs)
'''


@pytest.fixture
def sums(tmp_path: Path, monkeypatch):
    """Make environments of a module `sums_for_tests`, as an installed one would be found."""
    (tmp_path / "sums_for_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(verifiers_loading, "_LOADED", {})
    yield lambda **kwargs: resolve("verifiers/sums-for-tests", kwargs)
    sys.modules.pop("sums_for_tests", None)


async def begin(factory, index=0):
    env, task = factory(), factory.tasks("train", 0)[index]
    observation, info = await env.reset(options={"task": task})
    return env, task, observation, info


async def test_one_turn(sums) -> None:
    factory = sums()
    env, task, observation, _ = await begin(factory)
    assert observation == [{"role": "system", "content": "Add."}, {"role": "user", "content": task.data["question"]}]
    last, reward, terminated, truncated, info = await env.step(task.label)
    assert (last, reward, terminated, truncated) == ([], 1.5, True, False)  # right, and half for being short
    assert info["extra_logs"] == {"right": 1.0, "short": 1.0, "num_turns": 1.0}
    env, task, *_ = await begin(factory, 1)
    assert (await env.step("it is " + "very " * 5 + "much"))[1] == 0.0


async def test_several_turns(sums) -> None:
    env, task, *_ = await begin(sums(kind="multi"), 3)
    cleaned = sys.modules["sums_for_tests"].CLEANED
    assert await env.step("x") == ([{"role": "user", "content": "1: no"}], 0.0, False, False, {})
    assert await env.step("y") == ([{"role": "user", "content": "2: no"}], 0.0, False, False, {})
    assert cleaned == []
    last, reward, terminated, truncated, _ = await env.step(task.label)
    assert (last, reward, terminated, truncated) == ([], 1.5, True, False)
    assert cleaned == [task.data["example_id"]]


async def test_how_several_turns_end(sums) -> None:
    factory = sums(kind="multi")
    env, *_ = await begin(factory)
    results = [await env.step("x") for _ in range(3)]
    assert [result[2:4] for result in results] == [
        (False, False),
        (False, False),
        (False, True),
    ]  # max_turns of its own
    env, *_ = await begin(factory)
    last, _, terminated, truncated, _ = await env.step("stop")
    assert (last, terminated, truncated) == ([{"role": "user", "content": "bye"}], True, False)
    env, task, *_ = await begin(factory, 5)
    await env.close()  # in the midst of an episode
    assert sys.modules["sums_for_tests"].CLEANED[-1] == task.data["example_id"]


async def test_tools(sums) -> None:
    env, task, _, info = await begin(sums(kind="tools"), 2)
    assert [tool["function"]["name"] for tool in info["tools"]] == ["add"]
    call = '<tool_call>{"name": "add", "arguments": {"a": 20, "b": 3}}</tool_call>'
    messages, reward, terminated, *_ = await env.step(call)
    assert [(message["role"], message["content"]) for message in messages] == [("tool", "23")]
    assert not terminated
    messages, *_ = await env.step('<tool_call>{"name": "subtract", "arguments": {}}</tool_call>')
    assert messages[0]["role"] == "tool"  # the environment's own words for a mistake
    _, reward, terminated, _, info = await env.step(task.label)
    assert (reward, terminated, info["extra_logs"]["add_calls"]) == (1.5, True, 1.0)


async def test_failures_are_no_rewards(sums) -> None:
    env, *_ = await begin(sums())
    with pytest.raises(RewardError, match="right raised RuntimeError: judge is down"):
        await env.step("crash")
    env, *_ = await begin(sums(kind="multi"))
    with pytest.raises(EnvError, match="broken"):
        await env.step("break")
    env, *_ = await begin(sums(kind="multi"))
    with pytest.raises(EnvError, match="rewrites what was said before"):
        await env.step("rewrite")


def test_splits(sums) -> None:
    questions = {
        split: {task.label + task.data["question"] for task in sums().tasks(split, 0)} for split in ("train", "eval")
    }
    assert not questions["train"] & questions["eval"]
    assert len(questions["train"] | questions["eval"]) == 64
    assert 2 <= len(questions["eval"]) <= 14
    own = sums(held_out=True)
    assert (len(own.tasks("train", 0)), len(own.tasks("eval", 0))) == (64, 4)
    assert own.tasks("train", 0)[5].id == own.tasks("train", 1)[5].id


def test_it_is_a_proper_environment(sums) -> None:
    assert check_env(sums(kind="multi")) == []


def test_it_leaves_signals_alone_and_loads_in_any_thread(sums) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    errors = []

    def load() -> None:
        try:
            sums().tasks("train", 0)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join(60)
    assert errors == []
    sums(kind="multi").tasks("train", 0)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_cannot_be_is_refused(sums) -> None:
    with pytest.raises(UnknownNameError, match="unknown environment 'verifiers/no-such-thing'"):
        resolve("verifiers/no-such-thing", {}).tasks("train", 0)
    with pytest.raises(ConfigError, match=r"compares attempts with each other \(best\)"):
        sums(kind="group").tasks("train", 0)
    with pytest.raises(ConfigError, match=r"cannot be loaded: .*unexpected keyword argument 'colour'"):
        sums(colour=1).tasks("train", 0)
    with pytest.raises(EnvError, match="takes its own tasks only"):
        asyncio.run(sums()().reset(seed=1))
