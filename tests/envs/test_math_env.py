from typing import Any

import pytest

from turngym.envs.builtin.math import Math
from turngym.envs.task import Task
from turngym.errors import ConfigError, EnvError, GraderError


def task(label: Any, prompt: Any = "What is 1/2 + 1/3?") -> dict[str, Any]:
    return {"task": Task(id="row 7", prompt=prompt, label=label)}


@pytest.mark.slow
async def test_an_episode_is_one_problem_and_one_reward() -> None:
    env = Math(deadline_s=60, system_prompt="Be brief.", instruction="Use a box.")
    messages, _ = await env.reset(options=task("5/6"))
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1/2 + 1/3?\n\nUse a box."},
    ]
    observation, reward, terminated, truncated, info = await env.step(r"So \boxed{\frac{10}{12}}")
    assert (observation, reward, terminated, truncated, info["score"]) == ("", 1.0, True, False, 1.0)
    await env.reset(options=task(5))
    _, reward, _, _, info = await env.step(r"\boxed{6}")
    assert (reward, info["score"], info["answer"]) == (0.0, 0.0, "6")


async def test_chat_prompts_keep_their_messages() -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "1+1?"}]}]
    messages, _ = await Math(instruction="Box it.").reset(options=task("2", chat))
    assert messages[0] == chat[0]
    assert messages[1]["content"] == [{"type": "text", "text": "1+1?"}, {"type": "text", "text": "Box it."}]
    messages, _ = await Math(instruction="").reset(options=task("2", chat))
    assert messages == chat


@pytest.mark.slow
async def test_no_verdict_is_an_error_and_not_a_reward() -> None:
    env = Math(deadline_s=60)
    await env.reset(options=task("x^2 +"))
    with pytest.raises(GraderError, match="label"):
        await env.step(r"\boxed{7}")
    with pytest.raises(EnvError, match="call reset first"):
        await env.step(r"\boxed{7}")


@pytest.mark.parametrize("label", [None, "", True, ["2"]])
async def test_a_label_that_is_none_is_named(label: object) -> None:
    with pytest.raises(EnvError, match="'row 7'"):
        await Math().reset(options=task(label))


def test_tasks_come_from_a_dataset() -> None:
    with pytest.raises(ConfigError, match=r"--data\.prompt_dataset"):
        Math().tasks("train", 0)
    with pytest.raises(ConfigError, match="deadline_s"):
        Math(deadline_s=0)


@pytest.mark.slow
def test_labels_that_cannot_be_read_are_named_before_training():
    tasks = [Task(id="good", prompt="p", label="\\dfrac{9}{7}"), Task(id="bad", prompt="p", label="\\frac{1}{")]
    complaints = Math().complaints(tasks)
    assert len(complaints) == 1
    assert "'bad'" in complaints[0]
    assert Math().complaints(tasks[:1]) == []
