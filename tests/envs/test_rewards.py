"""Reward functions in Python files: OpenRLHF's contract, and every way to break it."""

import asyncio
import math
from pathlib import Path

import pytest
import torch

from turngym.envs import watched_loops
from turngym.envs.reward import Reward, parse_rewards
from turngym.envs.rewards import FileReward, load_reward
from turngym.errors import ConfigError, DeadlineError, GraderError, RewardError


@pytest.fixture
def write(tmp_path: Path):
    def make(body: str, name: str = "reward.py", timeout_s: float = 30.0) -> FileReward:
        (tmp_path / name).write_text(body)
        return FileReward(str(tmp_path / name), timeout_s)

    return make


async def score(reward: FileReward, num_queries: int = 1) -> list[Reward]:
    return await reward(["p a"] * num_queries, ["p"] * num_queries, ["l"] * num_queries)


# As published for OpenRLHF: a module-level function that is called positionally and returns tensors.
OPENRLHF = """
import torch

def reward_func(queries, prompts, labels, **kwargs):
    rewards = torch.tensor([float(q[len(p):].strip() == l) for q, p, l in zip(queries, prompts, labels)])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"right": rewards, "batch": len(queries)}}
"""


async def test_a_file_written_for_openrlhf_runs_as_it_is(write) -> None:
    reward = write(OPENRLHF)
    assert await reward(["1+1= 2", "1+1= 3"], ["1+1=", "1+1="], ["2", "2"]) == [
        Reward(1.0, 1.0, {"right": 1.0, "batch": 2.0}),
        Reward(0.0, 0.0, {"right": 0.0, "batch": 2.0}),
    ]


@pytest.mark.parametrize(
    "returned",
    ["[0.5]", "torch.tensor([0.5])", "torch.tensor(0.5)", "0.5", "[torch.tensor(0.5)]", "torch.tensor([[0.5]])",
     "torch.tensor([0.5], requires_grad=True)", "torch.tensor([0.5], dtype=torch.bfloat16)", "{'rewards': [0.5]}"],
)  # fmt: skip
@pytest.mark.parametrize("prefix", ["", "async "])
async def test_forms_of_one_reward(write, returned: str, prefix: str) -> None:
    reward = write(f"import torch\n{prefix}def reward_func(queries, prompts, labels, **kwargs): return {returned}")
    assert await score(reward) == [Reward(0.5, 0.5, {})]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[1.0, 2.0]", "2 rewards for 1 queries"),
        ("[]", r"\[\] as rewards; wanted 1 numbers"),
        ("[float('nan')]", "nan as rewards of query 0"),
        ("[float('inf')]", "inf as rewards of query 0"),
        ("[None]", "None counts as NaN"),
        ("None", "None as rewards; wanted 1 numbers"),
        ("'good'", "'good' as rewards"),
        ("[[1.0, 2.0]]", "2 rewards for 1 queries"),
        ("{'scores': [1.0]}", r"a dict with the keys \['scores'\]; wanted 'rewards'"),
        ("{'rewards': [1.0], 'scores': [float('nan')]}", "nan as scores"),
        ("{'rewards': [1.0], 'scores': [1.0, 0.0]}", "2 scores for 1 queries"),
        ("{'rewards': [1.0], 'extra_logs': [1.0]}", "extra_logs of type list"),
        ("{'rewards': [1.0], 'extra_logs': {'a': 'b'}}", r"'b' as extra_logs\['a'\]"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
    ],
)
async def test_what_is_no_reward_is_an_error_that_names_the_file(write, returned: str, message: str) -> None:
    reward = write(f"def reward_func(queries, prompts, labels): return {returned}")
    with pytest.raises(RewardError, match=message) as caught:
        await score(reward)
    assert "reward.py" in str(caught.value)


async def test_one_number_is_no_reward_for_two_queries(write) -> None:
    with pytest.raises(RewardError, match="1 rewards for 2 queries"):
        await score(write("def reward_func(queries, prompts, labels): return 1.0"), num_queries=2)


async def test_a_score_of_zero_is_a_value(write) -> None:
    reward = write("def reward_func(q, p, l): return {'rewards': [1.0], 'scores': [0.0]}")
    assert await score(reward) == [Reward(1.0, 0.0, {})]
    reward = write("def reward_func(q, p, l): return {'rewards': [0.0], 'scores': None, 'extra_logs': None}", "b.py")
    assert await score(reward) == [Reward(0.0, 0.0, {})]


async def test_an_exception_of_ours_keeps_its_type(write) -> None:
    reward = write("from turngym.errors import GraderError\ndef reward_func(q, p, l): raise GraderError('no verdict')")
    with pytest.raises(GraderError, match="no verdict"):
        await score(reward)


async def test_a_plain_function_runs_off_the_event_loop(write) -> None:
    on_the_main_thread = "threading.current_thread() is threading.main_thread()"
    reward = write(f"import threading\ndef reward_func(q, p, l): return [float({on_the_main_thread})]")
    assert (await score(reward))[0].reward == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", "async "])
async def test_a_blocking_function_leaves_the_event_loop_free(write, prefix: str) -> None:
    reward = write(f"import time\n{prefix}def reward_func(q, p, l):\n    time.sleep(0.5)\n    return [1.0]")
    pending = asyncio.create_task(score(reward))
    beats = 0
    while not pending.done():
        await asyncio.sleep(0.01)
        beats += 1
    assert pending.result()[0].reward == 1.0
    assert beats >= 5


@pytest.mark.parametrize(
    "body",
    [
        "import time\ndef reward_func(q, p, l): time.sleep(600)",
        "import asyncio\nasync def reward_func(q, p, l): await asyncio.sleep(600)",
        "import asyncio, functools\nasync def f(x, q, p, l): await asyncio.sleep(600)\n"
        "reward_func = functools.partial(f, 1)",
    ],
)
async def test_a_deadline_is_kept(write, body: str) -> None:
    with pytest.raises(DeadlineError, match=r"reward.py' took longer than its deadline of 0.2 s"):
        await score(write(body, timeout_s=0.2))


async def test_a_timeout_inside_is_the_functions_own_failure(write) -> None:
    for prefix in ("", "async "):
        reward = write(f"{prefix}def reward_func(q, p, l): raise TimeoutError('judge')", f"{prefix.strip()}r.py")
        with pytest.raises(RewardError, match="raised TimeoutError: judge"):
            await score(reward)


@pytest.mark.slow
async def test_some_hung_calls_leave_the_others_their_verdicts(write) -> None:
    body = (
        "import asyncio\nasync def reward_func(queries, prompts, labels):\n"
        "    if labels[0] < 8: await asyncio.sleep(600)\n    return [1.0]"
    )
    reward = write(body, timeout_s=1.0)
    results = await asyncio.gather(*(reward(["q"], ["p"], [i]) for i in range(64)), return_exceptions=True)
    assert sum(isinstance(result, DeadlineError) for result in results) == 8
    assert sum(result == [Reward(1.0, 1.0, {})] for result in results) == 56


async def test_a_coroutine_that_blocks_costs_no_other_its_verdict(write, monkeypatch) -> None:
    monkeypatch.setattr(watched_loops, "BEAT_S", 0.002)
    reward = write(
        "import threading\nrelease = threading.Event()\nasync def reward_func(queries, prompts, labels):\n"
        "    if labels[0] == 0: release.wait(600)\n    return [1.0]",
        timeout_s=0.5,  # in which a busy machine, too, sees who blocks
    )
    bad = asyncio.create_task(reward(["q"], ["p"], [0]))
    await asyncio.sleep(0)
    reward._calls._timeout_s = 60.0  # for the others
    assert await asyncio.gather(*(reward(["q"], ["p"], [n]) for n in range(1, 4))) == [[Reward(1.0, 1.0, {})]] * 3
    with pytest.raises(DeadlineError, match=r"py:4 in reward_func.*: it must await there, or be a plain function"):
        await bad
    assert await reward(["q"], ["p"], [5]) == [Reward(1.0, 1.0, {})]
    reward._function.__globals__["release"].set()


async def test_two_files_of_one_name_do_not_collide(tmp_path: Path) -> None:
    for folder, value in (("a", 1), ("b", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "reward.py").write_text(f"def reward_func(q, p, l): return [{value}]")
    got = [await score(load_reward(str(tmp_path / folder / "reward.py"))) for folder in ("a", "b")]
    assert [rewards[0].reward for rewards in got] == [1.0, 2.0]
    assert load_reward(str(tmp_path / "a" / "reward.py")) is load_reward(str(tmp_path / "a" / "reward.py"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("missing.py", "no file '.*missing.py'"),
        ("reward.txt", "one .py file or http"),
        ("a.py,b.py", "one .py file or http"),
        ("http://x/y,b.py", "one .py file or http"),
        ("", "one .py file or http"),
    ],
)
def test_urls_of_another_form_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_reward(url)


def test_a_file_without_reward_func_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "r.py").write_text("def reward_fun(q, p, l): return [1.0]")
    with pytest.raises(ConfigError, match=r"defines no reward_func.*Did you mean 'reward_fun'"):
        load_reward(str(tmp_path / "r.py"))


def test_no_queries_no_rewards() -> None:
    assert parse_rewards([], 0, "f.py") == []
    assert parse_rewards(torch.empty(0), 0, "f.py") == []
    assert math.isfinite(parse_rewards([1], 1, "f.py")[0].reward)
