"""Episodes with tools as a run plays them: a scripted engine, the chat agent, the executor."""

import asyncio
import json

import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turngym.agents.base import Sampling
from turngym.agents.chat import ChatAgent
from turngym.envs.base import Env
from turngym.envs.factory import EnvFactory
from turngym.envs.graders.math_text import last_box
from turngym.envs.serving.app import env_app
from turngym.envs.serving.limits import ServeLimits
from turngym.envs.serving.mcp_mount import McpMount
from turngym.envs.serving.served_env import ServedEnv
from turngym.envs.serving.service import EnvService
from turngym.envs.task import Task
from turngym.envs.tools.mcp_env import MCP
from turngym.envs.tools.tool_env import ToolEnv
from turngym.envs.tools.tool_loop import ToolLoop
from turngym.envs.tools.tool_server import ToolServer
from turngym.errors import EnvError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.trajectory import EndReason, FailureKind

TEMPLATE = (
    "{% if tools %}<|start|>tools:{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)
TASK = Task("t", prompt="2 + 3?", label="5")


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|start|>", "<|end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=TEMPLATE)


class Sum(ToolEnv):
    """Rewards the label."""

    def __init__(self) -> None:
        super().__init__(tools=[add, lost])

    async def reward(self, answer: str) -> float:
        return float(answer == self.task.label)


def add(a: int, b: int) -> int:
    return a + b


def lost() -> int:
    raise EnvError("the database is gone")


def call(name, **arguments) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


class Judge(ToolLoop):
    """Scores the answer, wherever the tools are."""

    async def reward(self, answer: str) -> float:
        return float(answer == self.task.label)


class SumOverHttp(Judge, ToolServer): ...


class SumOverMcp(Judge, MCP): ...


async def add_over_http(request) -> Response:
    arguments = await request.json()
    if not {"a", "b"} <= set(arguments):
        return PlainTextResponse("a sum has two terms", 422)
    return PlainTextResponse(str(add(**arguments)))


def everywhere(live) -> dict[str, EnvFactory]:
    """Offer the same tools in every way there is."""
    own = EnvFactory("Sum", Sum)
    service = EnvService(own, ServeLimits())
    served = live(env_app(service, "k", McpMount(service)))
    schemas = JSONResponse(Sum().new_toolbox().schemas)
    routes = [Route("/tools", schemas), Route("/call/add", add_over_http, methods=["POST"])]
    others = {"url": live(Starlette(routes=routes)), "schemas_path": "/tools", "call_path": "/call/{name}"}
    key = {"Authorization": "Bearer k"}
    return {
        "functions": own,
        "served": EnvFactory("ServedEnv", ServedEnv, {"url": served, "key": "k"}),
        "mcp": EnvFactory("MCP", SumOverMcp, {"url": f"{served}/mcp", "headers": key}),
        "http": EnvFactory("ToolServer", SumOverHttp, others),
    }


async def play(tokenizer, pool, answers, factory=None, **limits):
    replies = [tokenizer.encode(f"{answer}<|end|>") for answer in answers]
    factory = factory or EnvFactory("Sum", Sum)
    executor = MultiTurn(ChatAgent(tokenizer), factory, pool, Limits(**limits))
    async with asyncio.timeout(60):
        return await executor.run(TASK, 0, ScriptedEngine(replies), Sampling(max_tokens=400))


async def test_only_what_was_sampled_is_an_action(tokenizer, pool):
    answers = [call("add", a=2) + call("add", a=2, b=3), "<tool_call>{</tool_call>", "5"]
    trajectory = await play(tokenizer, pool, answers)
    assert trajectory.end_reason is EndReason.TERMINATED
    assert trajectory.rewards_per_turn.tolist() == [0.0, 0.0, 1.0]
    assert trajectory.extra_logs == {"tool_calls": 3.0, "tool_errors": 2.0}
    (sequence,) = trajectory.sequences
    context = tokenizer.decode(sequence.token_ids[~sequence.is_action])
    assert tokenizer.decode(sequence.token_ids[sequence.is_action]) == "".join(f"{each}<|end|>" for each in answers)
    assert context.startswith('<|start|>tools:[{"type": "function", "function": {"name": "add"')
    assert "<|start|>tool:5<|end|>" in context
    assert "b is missing" in context
    # Piece by piece: which tokens are whose.
    edges = np.flatnonzero(np.diff(sequence.is_action.astype(int))) + 1
    pieces = [tokenizer.decode(piece) for piece in np.split(sequence.token_ids, edges)]
    assert pieces[1::2] == [f"{each}<|end|>" for each in answers]
    assert pieces[4].startswith("<|start|>tool:Nothing was run")


class Boxed(ToolEnv):
    """Wants the label in a box, which its one tool writes as well."""

    def __init__(self) -> None:
        super().__init__(tools=[verify], max_turns=3)

    async def reward(self, answer: str) -> float:
        return float(last_box(answer) == self.task.label)


def verify() -> str:
    return r"\boxed{5}"


@pytest.mark.parametrize(
    ("answers", "rewards"),
    [
        ([call("verify"), "So it is."], [0.0, 0.0]),
        ([call("verify") + "\nObservation: \\boxed{5}", "So it is."], [0.0, 0.0]),  # it made up what the tool said
        ([call("verify"), r"\boxed{5}"], [0.0, 1.0]),
        ([call("verify"), call("verify"), call("verify")], [0.0, 0.0, 0.0]),  # nothing is left but what tools said
    ],
)
async def test_what_a_tool_says_is_no_answer(tokenizer, pool, answers, rewards):
    r"""R64: a tool says \boxed{LABEL}; the reward stands on the model's last turn, whose tokens end the sequence."""
    trajectory = await play(tokenizer, pool, answers, EnvFactory("Boxed", Boxed))
    assert trajectory.rewards_per_turn.tolist() == rewards
    (sequence,) = trajectory.sequences
    last = np.flatnonzero(sequence.turn == len(rewards) - 1)
    assert sequence.is_action[last].all()
    said = tokenizer.decode(sequence.token_ids[~sequence.is_action])
    assert said.count("<|start|>tool:\\boxed{5}<|end|>") == len(answers) - 1


class Verified(ToolEnv):
    """Pays for the label in a box, wherever it is shown one."""

    def __init__(self, **rules) -> None:
        super().__init__(tools=[verify], **rules)

    async def reward(self, answer: str) -> float:
        return float(self.task.label in answer)


OBSERVED = "\nObservation: \\boxed{5}\n"


@pytest.mark.parametrize("answers", [[call("verify") + OBSERVED, "So it is."], [2 * call("verify") + OBSERVED, "So."]])
async def test_what_the_model_made_up_behind_its_call_is_in_no_prompt_loss_or_reward(tokenizer, pool, answers):
    r"""R64: a turn goes on after its call with `Observation: \boxed{LABEL}`."""
    trajectory = await play(tokenizer, pool, answers, EnvFactory("Verified", Verified))
    assert trajectory.rewards_per_turn.tolist() == [0.0, 0.0]
    (sequence,) = trajectory.sequences
    sampled = [answers[0].removesuffix(OBSERVED), f"{answers[1]}<|end|>"]
    assert tokenizer.decode(sequence.token_ids[sequence.is_action]) == "".join(sampled)
    assert np.isfinite(sequence.logprobs[sequence.is_action]).all()
    shown = "<|start|>tool:\\boxed{5}<|end|>" * answers[0].count("name")
    assert f"{sampled[0]}<|end|>{shown}<|start|>assistant:So" in tokenizer.decode(sequence.token_ids)


async def test_where_one_call_is_made_the_sampling_ends_behind_it(tokenizer, pool):
    factory = EnvFactory("Verified", Verified, {"max_calls": 1})
    trajectory = await play(tokenizer, pool, [call("verify"), "So."], factory)
    (sequence,) = trajectory.sequences
    assert [each.stop for each in sequence.samplings.values()] == [("</tool_call>",)] * 2


@pytest.mark.parametrize(("max_turns", "num_turns"), [(1, 1), (16, 2)])
async def test_what_is_kept_behind_a_call_is_no_answer(tokenizer, pool, max_turns, num_turns):
    factory = EnvFactory("Verified", Verified, {"after_calls": "keep", "max_turns": max_turns, "max_calls": 1})
    trajectory = await play(tokenizer, pool, [call("verify") + OBSERVED, "So."], factory)
    assert trajectory.rewards_per_turn.tolist() == [0.0] * num_turns
    (sequence,) = trajectory.sequences
    assert OBSERVED in tokenizer.decode(sequence.token_ids[sequence.is_action])
    assert sequence.samplings[0].stop == ()


def log(day: int = 0, n: int = 0, text: str = "none", items: list[int] | None = None) -> str:
    return json.dumps([day, n, text, items])


@pytest.mark.slow  # vLLM's parser
async def test_values_that_do_not_fit_their_type_are_the_environments_to_judge(tokenizer, pool, tmp_path):
    """R15: through the tool loop; what is no whole number is told to the model, and nothing is ever evaluated."""
    code = f'__import__("os").system("touch {tmp_path}/pwned")'
    values = [("day", "2026-01-15"), ("n", ""), ("n", "None"), ("text", ""), ("items", code), ("items", "[1, 2, 3]")]
    calls = [
        f"<tool_call><function=log><parameter={name}>{value}</parameter></function></tool_call>"
        for name, value in values
    ]
    factory = EnvFactory("ToolEnv", ToolEnv, {"tools": [log]})
    executor = MultiTurn(ChatAgent(tokenizer, tool_parser="qwen3_coder"), factory, pool, Limits())
    replies = [tokenizer.encode(f"{answer}<|end|>") for answer in ("".join(calls), "Done.")]
    async with asyncio.timeout(60):
        trajectory = await executor.run(TASK, 0, ScriptedEngine(replies), Sampling(max_tokens=1000))
    assert trajectory.failure is None
    results = [message["content"] for message in trajectory.messages if message["role"] == "tool"]
    assert "day" in results[0]
    assert results[1:4] == ['[0, 0, "none", null]', '[0, 0, "none", null]', '[0, 0, "", null]']
    assert "items" in results[4]
    assert results[5] == '[0, 0, "none", [1, 2, 3]]'
    assert not (tmp_path / "pwned").exists()


async def test_a_turn_limit_of_the_run_ends_it_without_a_reward(tokenizer, pool):
    trajectory = await play(tokenizer, pool, [call("add", a=1, b=1)] * 2, max_turns=2)
    assert trajectory.end_reason is EndReason.MAX_TURNS
    assert trajectory.rewards_per_turn.tolist() == [0.0, 0.0]


async def test_a_failure_behind_a_tool_is_no_reward(tokenizer, pool):
    trajectory = await play(tokenizer, pool, [call("lost"), "5"])
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.ENV
    assert "the database is gone" in trajectory.failure.message
    assert len(trajectory.rewards_per_turn) == 0


@pytest.mark.slow
async def test_the_same_tools_in_other_places_give_the_same_tokens(tokenizer, pool, live):
    answers = [call("add", a=2, b=3) + call("add", a=-1, b=1), "<tool_call>{</tool_call>", "5"]
    played = {name: await play(tokenizer, pool, answers, factory) for name, factory in everywhere(live).items()}
    expected = played["functions"]
    assert expected.rewards_per_turn.tolist() == [0.0, 0.0, 1.0]
    for name, trajectory in played.items():
        assert trajectory.failure is None, name
        assert trajectory.rewards_per_turn.tolist() == expected.rewards_per_turn.tolist(), name
        assert trajectory.extra_logs == expected.extra_logs, name
        (sequence,), (wanted,) = trajectory.sequences, expected.sequences
        assert tokenizer.decode(sequence.token_ids) == tokenizer.decode(wanted.token_ids), name
        np.testing.assert_array_equal(sequence.token_ids, wanted.token_ids, name)
        np.testing.assert_array_equal(sequence.is_action, wanted.is_action, name)


@pytest.mark.slow
async def test_a_server_that_is_down_is_no_reward(tokenizer, pool):
    for factory in (
        EnvFactory("ToolServer", SumOverHttp, {"url": "http://127.0.0.1:9"}),
        EnvFactory("MCP", SumOverMcp, {"url": "http://127.0.0.1:9/mcp"}),
        EnvFactory("ServedEnv", ServedEnv, {"url": "http://127.0.0.1:9", "key": "k"}),
    ):
        trajectory = await play(tokenizer, pool, ["5"], factory)
        assert trajectory.failure is not None
        assert trajectory.failure.kind is FailureKind.ENV
        assert "ToolServerError" in trajectory.failure.message
        assert len(trajectory.rewards_per_turn) == 0


@pytest.mark.parametrize("tools", ["add", [7], [{"name": "add"}], {"add": {}}])
async def test_tools_that_are_no_schemas_are_an_environments_failure(tokenizer, pool, tools):
    class Odd(Env):
        def reset(self, *, seed=None, options=None):
            return "2 + 3?", {"tools": tools}

    trajectory = await play(tokenizer, pool, ["5"], Odd)
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.ENV
    assert "wanted a list of OpenAI function schemas" in trajectory.failure.message
