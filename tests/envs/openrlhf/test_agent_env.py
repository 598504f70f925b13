"""Agents of OpenRLHF's as environments: what they are told, what they answer, and every way to answer otherwise."""

from pathlib import Path
from typing import Any

import pytest

from turngym.envs.base import Action
from turngym.envs.messages import RawText
from turngym.envs.openrlhf.agent import AgentInstanceBase
from turngym.envs.openrlhf.env import AgentFile, agent_file
from turngym.envs.openrlhf.sampling import SamplingParams, changes
from turngym.envs.openrlhf.session import AgentSession
from turngym.envs.task import Task
from turngym.errors import ConfigError, EnvError, RewardError

pytestmark = pytest.mark.usefixtures("without_openrlhf")

STEP = {"rewards": 1.0, "environment_feedback": "f", "done": True}
TASK = {"task": Task(id="t", prompt="Q", label="7")}


class Stepping(AgentInstanceBase):
    answer: dict[str, Any] = {}
    told: list[dict[str, Any]] = []

    async def step(self, states, **kwargs):
        type(self).told.append(states)
        return self.answer


def answering(**changed: Any) -> type[Stepping]:
    answer = {key: value for key, value in {**STEP, **changed}.items() if value is not KeyError}
    return type("Agent", (Stepping,), {"answer": answer, "told": []})


async def step_of(agent_class: type, given: SamplingParams | None = None):
    return await (await AgentSession.begin(agent_class, "Q", None, given or SamplingParams(), "'a.py'")).step("A")


async def test_an_episode_of_a_published_agent(files: Path) -> None:
    env = agent_file(str(files / "agent_func.py"), {})()
    observation, _ = await env.reset(options=TASK)
    assert observation == RawText("Q")
    assert isinstance(observation, RawText)
    first = await env.step(Action("5", raw="5<|end|>"))
    assert first[:4] == ("\n\nHuman: [INCORRECT]\n<|end|>\n\nAssistant: ", 0.0, False, False)
    assert isinstance(first[0], RawText)
    assert first[4] == {"score": 0.0, "extra_logs": {"dummy_scores": 0.0, "turn_count": 1.0}, "sampling": {}}
    assert (await env.step(Action("5", raw="5")))[0].startswith("<|end|>\n\nHuman")  # special tokens are shown to it
    last = await env.step(Action("7", raw="7<|end|>"))
    assert last[:4] == ("\n\nHuman: [CORRECT]\n<|end|>", 1.0, True, False)


async def test_the_text_so_far_and_a_coroutine_for_init(files: Path) -> None:
    env = agent_file(str(files / "async_init.py"), {})()
    assert (await env.reset(options=TASK))[0] == "<Q7>"
    assert (await env.step("a"))[:3] == ("[<Q7>]", 0.25, False)
    assert (await env.step("b"))[:3] == ("[<Q7>a[<Q7>]]", 0.25, True)


async def test_each_episode_has_its_own_instance_and_parameters(files: Path) -> None:
    factory = agent_file(str(files / "async_init.py"), {})
    first, second = factory(), factory()
    for env in (first, second):
        await env.reset(options=TASK)
    await first.step("a")
    assert (await second.step("b"))[2] is False


async def test_a_label_that_is_not_known_is_empty_as_in_openrlhf() -> None:
    agent_class = answering()
    await step_of(agent_class)
    told = agent_class.told[0]
    assert (told["observation_text"], told["action_text"], told["label"]) == ("Q", "A", "")
    assert isinstance(told["sampling_params"], SamplingParams)


@pytest.mark.parametrize("form", ["2", "torch.tensor(2)", "torch.tensor([2.0])", "np.float32(2)", "True + 1"])
async def test_forms_of_a_reward(form: str) -> None:
    import numpy as np
    import torch

    assert (await step_of(answering(rewards=eval(form, {"torch": torch, "np": np})))).reward == 2.0


async def test_a_score_of_zero_is_a_score_and_an_absent_one_is_not_known() -> None:
    assert (await step_of(answering(scores=0.0))).score == 0.0
    assert (await step_of(answering())).score is None


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"rewards": KeyError}, EnvError, "a dict without 'rewards'; it has 'environment_feedback', 'done'"),
        ({"done": KeyError}, EnvError, "without 'done'"),
        ({"environment_feedback": KeyError}, EnvError, "without 'environment_feedback'"),
        ({"environment_feedback": None}, EnvError, "environment_feedback of type NoneType; wanted text"),
        ({"environment_images": ["x"]}, EnvError, "environment_images that cannot be read: there is no image"),
        (
            {"rewards": None},
            RewardError,
            "the rewards of step of 'a.py': wanted a number, or a tensor of one, got None",
        ),
        ({"rewards": float("nan")}, RewardError, "wanted a finite number, got nan"),
        ({"rewards": [1.0, 2.0]}, RewardError, "or a tensor of one, got .1.0, 2.0."),
        ({"scores": float("inf")}, RewardError, "the scores of step of 'a.py': wanted a finite number, got inf"),
        ({"extra_logs": {"n": "x"}}, RewardError, r"extra_logs\['n'\] of step of 'a.py': wanted .* got 'x'"),
        ({"extra_logs": [1]}, EnvError, "extra_logs of type list"),
    ],
)
async def test_answers_that_were_not_agreed(changed: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await step_of(answering(**changed))


async def test_an_answer_that_is_no_dict() -> None:
    class Agent(Stepping):
        async def step(self, states, **kwargs):
            return "text"

    with pytest.raises(EnvError, match=r"step of 'a\.py' returned type str; wanted a dict with 'environment_feedback'"):
        await step_of(Agent)


async def test_parameters_changed_in_place_returned_or_replaced() -> None:
    class Agent(Stepping):
        async def step(self, states, **kwargs):
            states["sampling_params"].temperature = 0.5
            return {**STEP, "done": False}

    given = SamplingParams(max_tokens=9)
    assert (await step_of(Agent, given)).resampled == {"temperature": 0.5}
    assert given == SamplingParams(max_tokens=9)  # that of the episode is its own
    assert (await step_of(answering(sampling_params=given), given)).resampled == {}
    new = SamplingParams(stop=["END"], max_tokens=3)
    assert (await step_of(answering(sampling_params=new), given)).resampled == {"stop": ("END",), "max_tokens": 3}


@pytest.mark.parametrize(
    "changed",
    [{"temperature": 0.0}, {"seed": 1}, {"n": 2}, {"structured_outputs": {"regex": "a", "choice": ["b"]}}],
)
def test_what_nothing_stands_for_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(EnvError, match=rf"'a.py' set {next(iter(changed))} of its sampling parameters to"):
        changes(SamplingParams(**changed), SamplingParams(), "'a.py'")


@pytest.mark.slow  # vLLM takes its time to be imported
def test_parameters_of_vllm() -> None:
    from vllm import SamplingParams as Params
    from vllm.sampling_params import StructuredOutputsParams

    assert changes(Params(), SamplingParams(), "f") == {}  # its max_tokens of 16 is nobody's wish
    wanted = changes(Params(temperature=0.7, stop="END", stop_token_ids=[3]), SamplingParams(), "f")
    assert wanted == {"temperature": 0.7, "stop": ("END",), "stop_token_ids": (3,)}
    outputs = StructuredOutputsParams(choice=["yes", "no"])
    shaped = Params(
        top_p=0.9, top_k=5, repetition_penalty=1.2, min_tokens=4, bad_words=["x"], structured_outputs=outputs
    )
    assert changes(shaped, SamplingParams(), "f") == {
        "top_p": 0.9,
        "top_k": 5,
        "shape": {
            "repetition_penalty": 1.2,
            "min_tokens": 4,
            "bad_words": ["x"],
            "grammar": {"kind": "choice", "text": '["yes", "no"]'},
        },
    }
    with pytest.raises(EnvError, match="set ignore_eos"):
        changes(Params(ignore_eos=True), SamplingParams(), "f")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Agent: pass", r"exports no class AgentExecutor with an execute\."),
        ("AgentExecutor = 3", r"exports no class AgentExecutor with an execute\."),
        ("from openrlhf.utils.agent import MultiTurnAgentExecutor as AgentExecutor", r"AgentExecutor\(\) of .* raised"),
        ("from openrlhf.utils.agent import MultiTurnAgentExecutor as M\n"
         "class AgentExecutor(M):\n    def __init__(self): super().__init__(int)", "wanted a class that inherits"),
    ],
)  # fmt: skip
def test_files_that_are_no_agents(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "agent_func.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        agent_file(str(tmp_path / "agent_func.py"), {})


async def test_prompts_must_be_text_by_then(files: Path) -> None:
    env = AgentFile(str(files / "agent_func.py"))
    with pytest.raises(EnvError, match=r"for chat messages give --data\.apply_chat_template"):
        await env.reset(options={"task": Task(id="t", prompt=[{"role": "user", "content": "Q"}])})
    with pytest.raises(EnvError, match="call reset first"):
        await env.step("a")
    with pytest.raises(ConfigError, match=r"name a dataset with --data\.prompt_dataset"):
        env.tasks("train", 0)
