"""`Prompt`: dataset rows and a reward function."""

from pathlib import Path

import pytest

from turngym import Action, RawText, Task, make
from turngym.envs.builtin.prompt import Prompt
from turngym.errors import ConfigError, EnvError, RewardError

ECHO = """
def reward_func(queries, prompts, labels, **kwargs):
    assert queries[0].startswith(prompts[0])
    seen.append((queries, prompts, labels))
    return {"rewards": [2.0], "scores": [0.0], "extra_logs": {"length": len(queries[0])}}
seen = []
"""


@pytest.fixture
def reward(tmp_path: Path) -> str:
    (tmp_path / "reward.py").write_text(ECHO)
    return str(tmp_path / "reward.py")


async def test_the_reward_function_sees_the_whole_text_and_its_prompt(reward: str) -> None:
    env = Prompt(reward)
    assert env.wants_query
    await env.reset(options={"task": Task("t", prompt="1+1=", label="2")})
    action = Action("2", raw="2<eos>", query="<bos>1+1=2<eos>")
    result = await env.step(action)
    assert result == ("", 2.0, True, False, {"score": 0.0, "extra_logs": {"length": 15.0}})
    module = env._reward._function.__globals__
    assert module["seen"] == [(["<bos>1+1=2<eos>"], ["<bos>1+1="], ["2"])]


@pytest.mark.parametrize(
    ("template", "prompt", "shown", "kind"),
    [
        (False, "hi", "hi", RawText),
        (True, "hi", "hi", str),
        (False, [{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}], list),
    ],
)
async def test_how_a_prompt_is_shown(reward: str, template: bool, prompt, shown, kind: type) -> None:
    observation, info = await Prompt(reward, apply_chat_template=template).reset(
        options={"task": Task("t", prompt=prompt)}
    )
    assert (observation, type(observation), info) == (shown, kind, {})


async def test_without_an_executor_the_texts_are_joined(reward: str) -> None:
    env = Prompt(reward)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": [{"text": "hi"}]}]
    await env.reset(options={"task": Task("t", prompt=messages)})
    await env.step("yes")
    assert env._reward._function.__globals__["seen"][-1] == (["be brief\nhiyes"], ["be brief\nhi"], [""])


async def test_a_label_of_another_type_is_passed_as_it_is(reward: str) -> None:
    env = Prompt(reward)
    await env.reset(options={"task": Task("t", prompt="p", label={"x": [1]})})
    await env.step("a")
    assert env._reward._function.__globals__["seen"][-1][2] == [{"x": [1]}]


async def test_a_failing_reward_function_is_no_reward_of_zero(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def reward_func(q, p, l): raise KeyError('gold')")
    env = Prompt(str(tmp_path / "bad.py"))
    await env.reset(options={"task": Task("t", prompt="p")})
    with pytest.raises(RewardError, match=r"bad.py' raised KeyError: 'gold'"):
        await env.step("a")


async def test_a_task_with_a_prompt_is_needed(reward: str) -> None:
    env = Prompt(reward)
    for options in (None, {}, {"task": Task("t")}):
        with pytest.raises(EnvError, match="Prompt needs a task with a prompt"):
            await env.reset(options=options)
    with pytest.raises(EnvError, match="call reset first"):
        await env.step("a")
    with pytest.raises(ConfigError, match=r"--data.prompt_dataset"):
        env.tasks("train", 0)


def test_through_gymnasium(reward: str) -> None:
    env = make("Prompt", remote_url=reward)
    assert env.reset(options={"task": Task("t", prompt="p")})[0] == "p"
    assert env.step("a")[1] == 2.0
    env.close()
