"""Files written for OpenRLHF, run by executors: token for token what the engine sampled, and every way to miss that."""

import asyncio
import re
from pathlib import Path

import numpy as np
import pytest

from turngym.agents.base import Sampling, StopReason
from turngym.agents.chat import agent_for
from turngym.agents.shape import Shape
from turngym.envs.openrlhf.env import agent_file
from turngym.envs.task import Task
from turngym.errors import EngineDeadError, EngineError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn
from turngym.executors.episodes.retry import stable_seed
from turngym.executors.episodes.trajectory import EndReason, FailureKind, TurnEnd
from turngym.executors.own_agents.agent_engine import AgentEngine, Samples
from turngym.executors.own_agents.agent_file import AgentFileExecutor, make_executor

pytestmark = pytest.mark.usefixtures("without_openrlhf")

FILES = Path(__file__).parents[2] / "envs" / "openrlhf" / "files"
TASK = Task(id="t", prompt="1+6=", label="7")
SAMPLING = Sampling(max_tokens=20)
NAN = float("nan")

HEAD = "from openrlhf.utils.agent import *\nfrom openrlhf.utils.agent import AgentExecutorBase\n"


@pytest.fixture
def ids(tokenizer):
    return lambda text: tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
def executor(tokenizer, pool):
    def make(file: Path, kwargs=None, **limits) -> MultiTurn:
        env = agent_file(str(file), kwargs or {})
        return make_executor(agent_for(tokenizer), env, pool, Limits(**limits), tokenizer)

    return make


@pytest.fixture
def written(tmp_path, executor):
    def make(body: str, **limits) -> MultiTurn:
        (tmp_path / "agent_func.py").write_text(HEAD + body)
        return executor(tmp_path / "agent_func.py", **limits)

    return make


async def run(executor: MultiTurn, engine: ScriptedEngine, **options):
    async with asyncio.timeout(60):
        return await executor.run(TASK, 0, engine, options.pop("sampling", SAMPLING), **options)


@pytest.mark.slow
async def test_a_published_agent_keeps_every_token(executor, saying, ids):
    """Its three turns, laid out by hand: prompt, what was sampled with its end token, feedback as it is."""
    multi_turn = executor(FILES / "agent_func.py")
    assert type(multi_turn) is MultiTurn
    engine = saying("5<|end|>", "6", "7<|end|>")
    trajectory = await run(multi_turn, engine)
    more, end = "\n\nHuman: [INCORRECT]\n<|end|>\n\nAssistant: ", "\n\nHuman: [CORRECT]\n<|end|>"
    pieces = [  # text, turn, whether it was sampled
        ("1+6=", -1, False),
        ("5<|end|>", 0, True),
        (more, 0, False),
        ("6", 1, True),
        ("<|end|>" + more, 1, False),
        ("7<|end|>", 2, True),
        (end, 2, False),
    ]
    (sequence,) = trajectory.sequences
    assert sequence.token_ids.tolist() == [i for text, _, _ in pieces for i in ids(text)]
    assert sequence.turn.tolist() == [turn for text, turn, _ in pieces for _ in ids(text)]
    assert sequence.is_action.tolist() == [sampled for text, _, sampled in pieces for _ in ids(text)]
    logprobs = [-1.0 - i if sampled else NAN for text, _, sampled in pieces for i in range(len(ids(text)))]
    np.testing.assert_array_equal(sequence.logprobs, np.asarray(logprobs, np.float32))
    assert [request.prompt_ids.tolist() for request in engine.requests] == [
        [i for text, _, _ in pieces[:stop] for i in ids(text)] for stop in (1, 3, 5)
    ]
    assert trajectory.rewards_per_turn.tolist() == [0, 0, 1]
    assert (trajectory.end_reason, trajectory.score) == (EndReason.TERMINATED, 1.0)
    assert trajectory.extra_logs == {"dummy_scores": 1.0, "turn_count": 3.0}


AGENT = """
class Agent(AgentInstanceBase):
    def __init__(self): self.turn = 0
    async def step(self, states, **kwargs):
        self.turn += 1
        {}
class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self): super().__init__(Agent)
"""
ANSWER = "return {'rewards': 1, 'environment_feedback': '.', 'done': self.turn == 3, 'sampling_params': params}"


async def test_an_agent_changes_how_the_next_turns_are_sampled(written, saying, ids):
    body = (
        "params = states['sampling_params']\n        if self.turn == 1: params.temperature, params.stop = 0.5, ['!']\n"
        "        if self.turn == 2: params.max_tokens = 1\n        " + ANSWER
    )
    engine = saying("abc", "abc", "abc")
    sampling = Sampling(max_tokens=2, stop_token_ids=(9,))
    trajectory = await run(written(AGENT.format(body)), engine, sampling=sampling)
    first, second, third = (request.sampling for request in engine.requests)
    assert first == sampling
    assert second == Sampling(max_tokens=2, temperature=0.5, stop=("!",), stop_token_ids=(9,))
    assert third == Sampling(max_tokens=1, temperature=0.5, stop=("!",), stop_token_ids=(9,))
    assert trajectory.sequences[0].samplings == {0: first, 1: second, 2: third}
    assert trajectory.turn_ends == (TurnEnd.TURN_TOKENS,) * 3


async def test_turns_sampled_under_a_truncation_or_a_penalty_are_marked(written, saying):
    body = (
        "params = states['sampling_params'].clone()\n        if self.turn == 1: params.top_p = 0.5\n"
        "        if self.turn == 2: params.presence_penalty, params.logit_bias, params.top_p = 1.5, {65: -3}, 1\n"
        "        " + ANSWER
    )
    (sequence,) = (await run(written(AGENT.format(body)), saying("abc", "ab", "a"))).sequences
    second, third = Sampling(20, top_p=0.5), Sampling(20, shape=Shape(presence_penalty=1.5, logit_bias=((65, -3),)))
    assert sequence.samplings == {0: SAMPLING, 1: second, 2: third}
    assert sequence.is_shaped.tolist() == (sequence.is_action & (sequence.turn > 0)).tolist()


async def test_an_executor_of_its_own_asks_for_them_too(written, saying):
    asked = "sampling_params.top_p, sampling_params.bad_words = 0.5, ['x']; " + WHOLE
    (sequence,) = (await run(written(EXECUTOR.format(asked)), saying("abc"))).sequences
    assert sequence.samplings == {0: Sampling(20, top_p=0.5, shape=Shape(bad_words=("x",)))}


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("raise KeyError('x')", FailureKind.ENV, "KeyError"),
        ("return {'rewards': None, 'environment_feedback': '', 'done': True}", FailureKind.REWARD, "got None"),
        ("return {'rewards': 1}", FailureKind.ENV, "without 'environment_feedback'"),
        ("params = states['sampling_params']; params.n = 2; " + ANSWER, FailureKind.ENV, "set n of"),
        ("params = states['sampling_params']; params.top_p = 2; " + ANSWER, FailureKind.ENV, "top_p must lie in"),
    ],
)  # fmt: skip
async def test_what_an_agent_does_wrong_fails_its_attempt(written, saying, body, kind, message):
    trajectory = await run(written(AGENT.format(body)), saying("a"))
    assert trajectory.failure.kind is kind
    assert message in trajectory.failure.message


async def test_an_executor_of_its_own_keeps_every_token(executor, saying, ids):
    own = executor(FILES / "own_executor.py")
    assert isinstance(own, AgentFileExecutor)
    engine = saying("6<|end|>", "7777777")  # the second is cut at the 4 tokens that the file asks for
    trajectory = await run(own, engine)
    pieces = [("1+6=", -1, 0), ("6<|end|>", 0, 1), ("+", 0, 0), ("7777", 1, 1), (".", 1, 0)]
    (sequence,) = trajectory.sequences
    assert sequence.token_ids.tolist() == [i for text, _, _ in pieces for i in ids(text)]
    assert sequence.turn.tolist() == [turn for text, turn, _ in pieces for _ in ids(text)]
    assert sequence.is_action.tolist() == [bool(sampled) for text, _, sampled in pieces for _ in ids(text)]
    assert sequence.logprobs[sequence.is_action].tolist() == [-1, -2, -1, -2, -3, -4]
    assert trajectory.rewards_per_turn.tolist() == [0, 1]
    assert trajectory.turn_ends == (TurnEnd.STOP, TurnEnd.TURN_TOKENS)
    assert (trajectory.end_reason, trajectory.score) == (EndReason.TRUNCATED, 0.0)
    assert trajectory.extra_logs == {"turns": 2.0}
    assert [m["content"] for m in trajectory.messages] == ["1+6=", "6<|end|>", "+", "7777", "."]
    assert engine.requests[0].name == "t/0/0"


async def test_both_ways_give_the_same_tokens(written, executor, saying):
    """The published agent as an environment, and through `super().execute` of a subclass."""
    by_env = await run(executor(FILES / "agent_func.py"), saying("5<|end|>", "6", "7<|end|>"))
    text = (
        FILES / "agent_func.py"
    ).read_text() + "\n    async def execute(self, **a): return await super().execute(**a)"
    by_itself = await run(written(text), saying("5<|end|>", "6", "7<|end|>"))
    first, second = by_env.sequences[0], by_itself.sequences[0]
    for name in ("token_ids", "is_action", "versions", "turn"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    np.testing.assert_array_equal(first.logprobs, second.logprobs)
    assert (by_env.reward, by_env.score, by_env.extra_logs) == (by_itself.reward, by_itself.score, by_itself.extra_logs)
    assert by_env.end_reason is by_itself.end_reason


EXECUTOR = """
class AgentExecutor(AgentExecutorBase):
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine, images=None):
        start = hf_tokenizer.encode(prompt, add_special_tokens=False)
        {}
        return {{"observation_tokens": tokens, "action_ranges": ranges, "reward": reward}}
"""
SAMPLE = "output = (await llm_engine.generate(start, sampling_params)).outputs[0]; reward = 1; "
WHOLE = SAMPLE + "tokens = start + output.token_ids; ranges = [(len(start), len(tokens))]"


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (WHOLE + "; tokens[-1] += 1", FailureKind.ENV, "the engine did not sample them"),
        (WHOLE + "; tokens[0] += 1", FailureKind.ENV, "the engine did not sample them"),
        (WHOLE + "; ranges = [(0, len(tokens))]", FailureKind.ENV, "did not sample"),
        (WHOLE + "; ranges = [(len(start), len(tokens) + 1)]", FailureKind.ENV, "did not sample"),
        (WHOLE + "; ranges = ranges * 2", FailureKind.ENV, "overlap"),
        (WHOLE + "; ranges = []", FailureKind.ENV, "no action_ranges"),
        (WHOLE + "; reward = None", FailureKind.REWARD, "the reward of AgentExecutor.execute of"),
        (WHOLE + "; reward = float('nan')", FailureKind.REWARD, "got nan"),
        ("return 3", FailureKind.ENV, "wanted a dict with 'observation_tokens', 'action_ranges'"),
        ("raise OSError('disk')", FailureKind.ENV, "OSError: disk"),
        ("sampling_params.seed = 3; " + WHOLE, FailureKind.ENV, "set seed"),
        ("sampling_params.presence_penalty = 3; " + WHOLE, FailureKind.ENV, "presence_penalty must lie in"),
        ("start = start * 300; " + WHOLE, FailureKind.PROMPT_TOO_LONG, "leaves no room"),
    ],
)
async def test_answers_that_cannot_be_trained_on(written, saying, body, kind, message):
    trajectory = await run(written(EXECUTOR.format(body)), saying("abc", max_context=1000))
    assert trajectory.failure.kind is kind
    assert message in trajectory.failure.message
    assert trajectory.sequences == ()


async def test_a_prompt_that_was_too_long_may_be_cut_and_tried_again(written, saying):
    body = (
        "try: await llm_engine.generate(start * 300, sampling_params)\n        except Exception: pass\n        " + WHOLE
    )
    assert (await run(written(EXECUTOR.format(body)), saying("abc", max_context=1000))).failure is None


async def test_what_comes_last_is_cut_at_the_context(written, saying):
    trajectory = await run(written(EXECUTOR.format(WHOLE + "; tokens += start * 9")), saying("abc"), sampling=SAMPLING)
    assert len(trajectory.sequences[0]) == 7 + 36
    short = await run(written(EXECUTOR.format(WHOLE + "; tokens += start * 9"), max_context=20), saying("abc"))
    assert len(short.sequences[0]) == 20


async def test_an_action_that_was_cut_short_keeps_the_first_tokens(written, saying, ids):
    trajectory = await run(
        written(EXECUTOR.format(WHOLE + "; tokens = tokens[:-1]; ranges = [(4, len(tokens))]")), saying("abc")
    )
    (sequence,) = trajectory.sequences
    assert sequence.token_ids.tolist() == ids("1+6=ab")
    assert sequence.logprobs[-2:].tolist() == [-1, -2]


@pytest.mark.parametrize(
    ("error", "kind"), [(EngineError("bad"), FailureKind.ENGINE), (EngineDeadError("gone"), FailureKind.ENGINE_DEAD)]
)
async def test_an_engine_that_fails_is_no_reward_whatever_the_file_makes_of_it(written, error, kind):
    def fail(request):
        raise error

    body = "tokens, ranges, reward = start, [(0, 1)], 0.0\n        try: " + SAMPLE
    trajectory = await run(written(EXECUTOR.format(body + "\n        except Exception: pass")), ScriptedEngine(fail))
    assert trajectory.failure.kind is kind


async def test_an_aborted_completion_is_the_engines_failure(written, ids):
    engine = ScriptedEngine([Reply(ids("ab"), [-1, -1], stop_reason=StopReason.ABORT)])
    assert (await run(written(EXECUTOR.format(WHOLE)), engine)).failure.kind is FailureKind.ENGINE


async def test_an_episode_that_takes_too_long(written, saying):
    executor = written("import asyncio\n" + EXECUTOR.format("await asyncio.sleep(3600)"), max_seconds=0.05)
    assert (await run(executor, saying("a"))).failure.kind is FailureKind.ENV_TIMEOUT


async def test_seeds_by_turn_and_limits_of_the_run(executor, saying):
    engine = saying("66666", "7777777")
    own = executor(FILES / "own_executor.py", max_turn_tokens=3, max_episode_tokens=5)
    trajectory = await run(own, engine, seed_for=stable_seed)
    assert [request.sampling.seed for request in engine.requests] == [stable_seed("t", 0, turn) for turn in (0, 1)]
    assert [request.sampling.max_tokens for request in engine.requests] == [3, 2]
    assert trajectory.turn_ends == (TurnEnd.TURN_TOKENS, TurnEnd.EPISODE_TOKENS)


async def test_single_turns_scored_by_a_file(written, saying, tmp_path):
    (tmp_path / "reward_func.py").write_text(
        "def reward_func(queries, prompts, labels): return [float(len(queries[0]))]"
    )
    body = "class AgentExecutor(SingleTurnAgentExecutor):\n    def __init__(self): super().__init__({!r})\n"
    trajectory = await run(written(body.format(str(tmp_path / "reward_func.py"))), saying("abc<|end|>"))
    assert trajectory.reward == len("1+6=abc<|end|>")


async def test_one_engine_kept_for_all_episodes_and_called_from_another_thread(written, saying):
    """As a server does that a file starts in its first episode: completions are found all the same."""
    body = """
import asyncio, threading
class AgentExecutor(AgentExecutorBase):
    engine = None
    async def execute(self, prompt, label, sampling_params, max_length, hf_tokenizer, llm_engine):
        if self.engine is None: self.engine = llm_engine
        start = hf_tokenizer.encode(prompt, add_special_tokens=False)
        def serve(): return asyncio.run(self.engine.generate(start, sampling_params))
        output = (await asyncio.to_thread(serve)).outputs[0]
        tokens = start + output.token_ids
        return {"observation_tokens": tokens, "action_ranges": [(len(start), len(tokens))], "reward": 1.0}
"""
    executor, engine = written(body), saying("ab", "cd", "ef")
    first = await run(executor, engine)
    others = await asyncio.gather(run(executor, engine), run(executor, engine))
    texts = [t.messages[1]["content"] for t in (first, *others)]
    assert sorted(texts) == ["ab", "cd", "ef"]
    assert executor._samples.begin() == 4
    assert not executor._samples._by_prompt  # what nobody can return any more is forgotten


async def test_the_example_of_the_docs(tmp_path, executor, saying):
    page = (Path(__file__).parents[3] / "docs" / "openrlhf.md").read_text()
    (tmp_path / "agent_func.py").write_text(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0])
    trajectory = await run(executor(tmp_path / "agent_func.py"), saying("6", "7"))
    assert [m["content"] for m in trajectory.messages] == ["1+6=", "6", "\nUser: try again\nAssistant:", "7"]
    assert (trajectory.rewards_per_turn.tolist(), trajectory.end_reason) == ([0, 1], EndReason.TERMINATED)


async def test_samples_are_forgotten_with_the_last_episode_that_saw_them(ids):
    samples = Samples()
    first = samples.begin()
    engine = AgentEngine(samples, ScriptedEngine(lambda request: [65, 66]), SAMPLING, Limits(), str, "a", None)
    await engine.generate([1, 2])
    second = samples.begin()
    samples.end(first)
    assert samples.find(np.array([1, 2], np.int32), np.array([65, 66], np.int32), None) is None
    await engine.generate([1, 2])
    assert samples.find(np.array([1, 2], np.int32), np.array([65], np.int32), None) is not None
    third = samples.begin()
    samples.end(second)
    samples.end(third)
    assert samples.find(np.array([1, 2], np.int32), np.array([65], np.int32), None) is None
