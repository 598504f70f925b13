"""`CodeSandbox`: programs over several turns, public tests seen, hidden ones decisive."""

import json

import pytest

from turngym.envs.builtin.code_puzzles import puzzle, puzzle_task
from turngym.envs.builtin.code_sandbox import CodeSandbox
from turngym.envs.checks import check_env
from turngym.envs.graders.code_tests import parse_tests
from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.errors import ConfigError, EnvError, SandboxError, UnknownNameError
from turngym.sandbox.base import Sandbox

from ..unsafe_sandbox import UnsafeSandbox

pytestmark = pytest.mark.slow

HIDDEN = {"entry_point": "add", "calls": [{"args": [a, 10], "expected": a + 10} for a in range(4)]}
PUBLIC = {"entry_point": "add", "calls": [{"args": [1, 2], "expected": 3}]}
RIGHT = "```python\ndef add(a, b):\n    return a + b\n```"
HALF = "```python\ndef add(a, b):\n    return a + b if a < 2 else 0\n```"


def task(hidden: object = HIDDEN, public: object = PUBLIC) -> dict:
    return {"task": Task("t", prompt="Add.", label=hidden, data={"public_tests": public})}


async def begin(**arguments) -> CodeSandbox:
    env = CodeSandbox(**arguments)
    await env.reset(options=task())
    return env


async def test_an_episode(sandbox: Sandbox) -> None:
    env = CodeSandbox(system_prompt="Be brief.", instruction="{language}, {turns}.")
    messages, _ = await env.reset(options=task(json.dumps(HIDDEN), json.dumps(PUBLIC)))
    assert [message["content"] for message in messages] == ["Be brief.", "Add.\n\npython, 4 messages."]
    observation, reward, terminated, truncated, _ = await env.step("```python\ndef add(a, b):\n    return a - b\n```")
    wanted = "0 of 1 public tests passed. First failure, test 1 of 1: add(1, 2): wanted 3, got -1\n\n3 messages left."
    assert (observation, reward, terminated, truncated) == (wanted, 0.0, False, False)
    observation, *_ = await env.step("```run\nx = 1 + 1\nprint(x)\n```")
    assert observation == "Output:\n2\n\n2 messages left."
    observation, *_ = await env.step(f"{RIGHT}\n```run\nx\n```")
    assert observation == "All 1 public tests passed.\n\nOutput:\n2\n\nThis is your last message."
    observation, reward, terminated, truncated, info = await env.step("I am content.\n**SUBMIT**")
    assert (observation, reward, terminated, truncated) == ("", 1.0, True, False)
    assert (info["score"], info["outcome"], info["extra_logs"]["solved"]) == (1.0, "passed", 1.0)
    with pytest.raises(EnvError, match="call reset first"):
        await env.step("SUBMIT")
    await env.close()


@pytest.mark.parametrize(
    ("partial", "program", "reward"), [(False, HALF, 0.0), (True, HALF, 0.5), (True, RIGHT, 1.0), (True, "none", 0.0)]
)
async def test_partial_credit_by_option(sandbox: Sandbox, partial: bool, program: str, reward: float) -> None:
    env = await begin(partial=partial, max_turns=1)
    result = await env.step(program)
    assert (result[1], result[2], result[4]["score"]) == (reward, True, reward)


async def test_the_last_program_is_taken_when_the_turns_are_over(sandbox: Sandbox) -> None:
    env = await begin(max_turns=2)
    await env.step(RIGHT)
    assert (await env.step("hm"))[1:4] == (1.0, True, False)


async def test_submitting_takes_the_program_beside_it(sandbox: Sandbox) -> None:
    env = await begin()
    assert (await env.step(f"{RIGHT}\nsubmit"))[1:3] == (1.0, True)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Hello", "I saw no fenced python block"),
        ("SUBMIT", "There is no program to submit"),
        ("<think>" + RIGHT, "I saw no fenced python block"),
        (f"<think>{RIGHT}\nSUBMIT</think>hm", "I saw no fenced python block"),
        ("```python\n# SUBMIT\nSUBMIT\n```", "0 of 1 public tests passed"),
        ("I will not SUBMIT yet", "I saw no fenced python block"),
        ("```python\n```", "0 of 1 public tests passed. First failure, wanted"),
    ],
)
async def test_what_is_no_submission(sandbox: Sandbox, message: str, said: str) -> None:
    env = await begin()
    observation, reward, terminated, *_ = await env.step(message)
    assert observation.startswith(said), observation
    assert (reward, terminated) == (0.0, False)


async def test_without_public_tests_a_program_is_kept(sandbox: Sandbox) -> None:
    env = CodeSandbox()
    await env.reset(options=task(public=None))
    assert (await env.step(RIGHT))[0].startswith("There are no public tests")
    env = CodeSandbox(num_public=2)
    await env.reset(options=task(public=None))
    assert (await env.step(RIGHT))[0].startswith("All 2 public tests passed.")


async def test_hidden_tests_are_never_shown(sandbox: Sandbox) -> None:
    secret = {"entry_point": "add", "calls": [{"args": [770_077, 0], "expected": "secret"}]}
    env = CodeSandbox()
    shown = [str(await env.reset(options=task(secret)))]
    for message in (RIGHT, "```run\nimport glob; glob.glob('/box/**')\n```", "hm", "SUBMIT"):
        shown.append(str(await env.step(message)))
    assert not any(word in text for word in ("secret", "770077") for text in shown)
    await env.close()


async def test_what_is_shown_is_bounded(sandbox: Sandbox) -> None:
    env = await begin(max_output_chars=300)
    observation, *_ = await env.step("```python\ndef add(a, b):\n    raise ValueError('x' * 100000)\n```")
    assert len(observation) < 400
    observation, *_ = await env.step("```run\nprint('x' * 100000)\n```")
    assert len(observation) < 400
    await env.close()


async def test_programs_of_another_language(sandbox: Sandbox) -> None:
    env = CodeSandbox(language="bash", max_turns=1)
    tests = {"inputs": ["b\na\n"], "outputs": ["a\nb\n"]}
    await env.reset(options=task(tests, None))
    assert (await env.step("```sh\nsort\n```"))[1] == 1.0


async def test_a_failing_sandbox_is_no_reward(unsafe: UnsafeSandbox) -> None:
    env = await begin(sandbox="unsafe")
    unsafe.failing = {"run": 1}
    with pytest.raises(SandboxError):
        await env.step(RIGHT)


async def test_forks_have_state_of_their_own(sandbox: Sandbox) -> None:
    env = await begin()
    await env.step(f"{HALF}\n```run\nx = 1\n```")
    twin = await env.fork()
    await twin.step(f"{RIGHT}\n```run\nx = 2\n```")
    assert (await env.step("```run\nx\n```"))[0] == "Output:\n1\n\n2 messages left."
    assert (await twin.step("SUBMIT"))[1] == 1.0
    assert (await env.step("SUBMIT"))[1] == 0.0
    assert sandbox.num_sessions == 2
    await env.close()
    await twin.close()


async def test_unusable_tests_are_named(unsafe: UnsafeSandbox) -> None:
    env = CodeSandbox(sandbox="unsafe", tests_key="cases")
    for label, data in (("5", {}), (HIDDEN, {"cases": "{"}), (HIDDEN, {"public_tests": {"calls": []}})):
        bad = Task("row 7", prompt="p", label=label, data=data)
        with pytest.raises(EnvError, match="task 'row 7' has tests that CodeSandbox cannot use"):
            await env.reset(options={"task": bad})
        (complaint,) = env.complaints([Task("row 6", prompt="p", label=HIDDEN), bad])
        assert "'row 7'" in complaint
    assert env.complaints([bad] * 9)[-1] == "and 4 more tasks like these"
    with pytest.raises(EnvError, match="needs a task with a prompt"):
        await env.reset(options={"task": Task("t", label=HIDDEN)})


def test_options() -> None:
    for arguments, what in (
        ({"max_turns": 0}, "max_turns"),
        ({"total_s": 0}, "total_s"),
        ({"test_s": 0}, "wall_s"),
        ({"num_public": -1}, "num_public"),
    ):
        with pytest.raises(ConfigError, match=what):
            CodeSandbox(**arguments)
    with pytest.raises(UnknownNameError, match="'javascript'"):
        CodeSandbox(language="javscript")
    with pytest.raises(UnknownNameError, match="sandbox"):
        CodeSandbox(sandbox="dokker")


def test_the_environment_passes_the_checks(sandbox: Sandbox) -> None:
    assert check_env(resolve("CodeSandbox", {"max_turns": 2})) == []


async def test_puzzles_can_be_solved_and_not_by_a_constant(sandbox: Sandbox) -> None:
    env = CodeSandbox(max_turns=1, partial=True)
    by_hand = {
        "keep only the even ones; then square each; then return their sum (0 if none is left)": (
            "sum(x * x for x in v if x % 2 == 0)"
        ),
        "keep only those that begin with a vowel; then write each in capitals; then return them as a list": (
            "[w.upper() for w in v if w[0] in 'aeiou']"
        ),
    }
    drawn = [puzzle(seed, "train") for seed in range(3000)]
    for wording, expression in by_hand.items():
        found = next(task for task in drawn if str(task.prompt).endswith(f"It is to {wording}."))
        for returned, reward in ((expression, 1.0), ("None", 0.0)):
            await env.reset(options={"task": found})
            assert (await env.step(f"```python\ndef solve(v): return {returned}\n```"))[1] == reward


def test_puzzles_are_many_distinct_and_split_by_their_wording() -> None:
    train = [puzzle_task("train", 0, index) for index in range(400)]
    held_out = [puzzle_task("eval", 0, index) for index in range(400)]
    assert not {task.prompt for task in train} & {task.prompt for task in held_out}
    assert len({task.prompt for task in train}) > 200
    assert len({task.id for task in train}) == 400
    assert puzzle_task("train", 0, 7) == train[7]
    for task_ in train + held_out:
        assert parse_tests(task_.label).num_tests == 12
        assert parse_tests(task_.data["public_tests"]).num_tests == 3
    expected = [{json.dumps(call["expected"]) for call in task_.label["calls"]} for task_ in train]
    assert min(map(len, expected)) >= 2  # so no constant passes
