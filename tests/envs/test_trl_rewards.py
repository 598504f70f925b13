"""Reward functions in TRL's form; what they are shown is compared with what TRL's own trainer shows them."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from turngym import Action
from turngym.envs.builtin.prompt import Prompt
from turngym.envs.reward import Reward
from turngym.envs.rewards import load_reward, reward_of
from turngym.envs.task import Task
from turngym.errors import ConfigError, DeadlineError, RewardError

CHAT = [{"role": "user", "content": "1+1="}]


@pytest.fixture
def load(tmp_path: Path):
    def make(body: str, name: str = "trl_reward.py", timeout_s: float = 30.0):
        (tmp_path / name).write_text(body)
        return load_reward(str(tmp_path / name), timeout_s=timeout_s)

    return make


async def score(function, *pairs: tuple[Task, str]) -> list[Reward]:
    return await function.score([task for task, _ in pairs], [answer for _, answer in pairs])


async def test_plain_text_and_columns_by_name(load) -> None:
    function = load("""
def reward_func(prompts, completions, answer, **kwargs):
    assert sorted(kwargs) == ["level", "log_metric"], sorted(kwargs)
    assert prompts == ["1+1=", "2+2="] and kwargs["level"] == [1, 2]
    return [float(c == a) for c, a in zip(completions, answer)]
""")
    tasks = [
        Task("a", prompt="1+1=", label="2", data={"answer": "2", "level": 1, "only_here": 0}),
        Task("b", prompt="2+2=", label="4", data={"answer": "4", "level": 2}),
    ]
    assert await score(function, (tasks[0], "2"), (tasks[1], "5")) == [Reward(1.0, 1.0), Reward(0.0, 0.0)]


async def test_chats_are_shown_as_chats(load) -> None:
    function = load("""
def reward_func(completions, prompts):
    assert prompts == [[{"role": "user", "content": "1+1="}]]
    assert completions == [[{"role": "assistant", "content": "2"}]]
    return [0.5]
""")
    assert await score(function, (Task("t", prompt=CHAT), "2")) == [Reward(0.5, 0.5)]


async def test_several_are_weighed_and_added_and_none_is_left_out(load) -> None:
    function = load("""
def length(completions, **kwargs): return [len(c) for c in completions]
async def right(completions, answer, log_metric, **kwargs):
    log_metric("seen", 1)
    log_metric("seen", 2)
    return [None if a is None else float(a in c) for c, a in zip(completions, answer)]
reward_funcs = [length, right]
reward_weights = [0.5, 2]
""")
    tasks = [Task("a", prompt="p", data={"answer": "x"}), Task("b", prompt="p", data={"answer": None})]
    assert await score(function, (tasks[0], "xy"), (tasks[1], "xy")) == [
        Reward(3.0, 3.0, {"rewards/length": 2.0, "rewards/right": 1.0, "seen": 1.5}),
        Reward(1.0, 1.0, {"rewards/length": 2.0, "seen": 1.5}),
    ]


@pytest.mark.parametrize("text", ["<think>\nso\n</think>\n4", "4"])
async def test_trls_own_functions_give_what_they_give_there(load, text: str) -> None:
    trl = pytest.importorskip("trl.rewards", reason="needs the package trl, of the extra dev")
    function = load("""
from trl.rewards import think_format_reward
reward_funcs = think_format_reward
""")
    (there,) = trl.think_format_reward([[{"role": "assistant", "content": text}]])
    assert [reward.reward for reward in await score(function, (Task("t", prompt=CHAT), text))] == [there]


@pytest.mark.slow
@pytest.mark.parametrize("is_chat", [False, True])
async def test_the_arguments_are_those_of_trls_trainer(load, is_chat: bool) -> None:
    """Its own code calls a function with one batch; ours calls it with the same."""
    pytest.importorskip("trl", reason="needs the package trl, of the extra dev")
    import torch
    from trl.trainer.grpo_trainer import GRPOTrainer

    calls = []

    def spy(prompts, completions, **kwargs):
        calls.append((prompts, completions, {"answer": kwargs["answer"], "level": kwargs["level"]}))
        return [1.0]

    prompt = CHAT if is_chat else "1+1="
    trainer = GRPOTrainer.__new__(GRPOTrainer)
    trainer.accelerator = SimpleNamespace(
        device=torch.device("cpu"), gather=lambda rewards: rewards, is_main_process=False
    )
    trainer.reward_funcs, trainer.reward_processing_classes, trainer.reward_func_names = [spy], [None], ["spy"]
    trainer.state, trainer.environments = SimpleNamespace(global_step=0), None
    trainer.args = SimpleNamespace(report_to=[])
    inputs = [{"prompt": prompt, "answer": "2", "level": 3}]
    completion = [{"role": "assistant", "content": "two"}] if is_chat else "two"
    trainer._calculate_rewards(inputs, [prompt], [completion], [[1]])

    function = load("calls = []\ndef reward_func(prompts, completions, **kwargs): return [1.0]")
    function._functions = {"spy": spy}
    await score(function, (Task("t", prompt=prompt, label="2", data={"answer": "2", "level": 3}), "two"))
    assert calls[0] == calls[1]


async def test_the_environment_prompt_gives_the_answer_without_special_tokens(load, tmp_path: Path) -> None:
    load("def reward_func(completions, answer, **kw): return [float(completions[0][0]['content'] == answer[0])]")
    env = Prompt(str(tmp_path / "trl_reward.py"))
    await env.reset(options={"task": Task("t", prompt=CHAT, label="2", data={"answer": "2"})})
    action = Action("2", raw="2<eos>", query="<bos>1+1=2<eos>")
    assert (await env.step(action))[1:] == (1.0, True, False, {"score": 1.0, "extra_logs": {}})


async def test_openrlhfs_contract_is_still_told_apart(load) -> None:
    function = load("def reward_func(queries, prompts, labels, **kwargs): return [float(queries == ['ab<e>'])]")
    assert await reward_of(function, Task("t", prompt="a"), "b", "a", "ab<e>") == Reward(1.0, 1.0)


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        ("def reward_func(completions): return [1.0, 2.0]", RewardError, "2 rewards for 1 completions"),
        ("def reward_func(completions): return [None]", RewardError, "every function returned None"),
        ("def reward_func(completions): return ['good']", RewardError, "returned .*good"),
        ("def reward_func(completions): raise KeyError('x')", RewardError, "reward_func of .* raised KeyError"),
        ("def reward_func(completions, solution): return [1.0]", RewardError, "missing .* 'solution'"),
        (
            "import asyncio\nasync def reward_func(completions): await asyncio.sleep(60)",
            DeadlineError,
            "deadline of 0.2",
        ),
    ],
)
async def test_what_is_no_reward_is_a_failure(load, body: str, error, says: str) -> None:
    function = load(body, timeout_s=0.2 if error is DeadlineError else 30.0)
    with pytest.raises(error, match=says):
        await score(function, (Task("t", prompt="p"), "c"))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("reward_funcs = ['some/model']", "Models are given as --reward.model_name_or_path"),
        ("def f(prompts): return 1\nreward_funcs = [f]", "wanted functions of"),
        ("def f(completions, completion_ids): pass\nreward_funcs = f", "wants completion_ids, which is not known here"),
        (
            "def f(completions): pass\nreward_funcs = f\nreward_weights = [1, 2]",
            "has 1 reward_funcs and 2 reward_weights",
        ),
    ],
)
def test_what_cannot_be_called_is_refused_when_it_is_loaded(load, body: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        load(body)
