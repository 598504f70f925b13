"""Episodes of users' agents: what becomes of their turns, their rewards, their mistakes and the engine's."""

import asyncio
import contextlib
import threading
from dataclasses import replace

import httpx
import numpy as np
import pytest

from turngym.agents import ChatAgent, Grammar, Sampling, Shape
from turngym.agents.base import Completion, RequestRefusedError, StopReason
from turngym.agents.frameworks.base import Endpoint
from turngym.agents.frameworks.calls import Calls
from turngym.agents.server.answers import Reader
from turngym.agents.server.api_errors import ApiError
from turngym.envs.reward import Reward
from turngym.envs.task import Task
from turngym.errors import EngineDeadError, EngineError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.trajectory import EndReason, FailureKind, TurnEnd
from turngym.executors.own_agents.meter import Meter
from turngym.executors.own_agents.openai_server import AgentEpisodes

SAMPLING = Sampling(max_tokens=40)
TASK = Task(id="a/b", prompt="How are you?", label="fine")


class Hosted:
    """A user's agent that is a coroutine function."""

    max_concurrency = None

    def __init__(self, run) -> None:
        self.run = run

    def tasks(self, split, seed):
        return None

    def complaints(self):
        return []

    def close(self) -> None:
        pass


async def ask(endpoint: Endpoint, *texts: str, **fields) -> str:
    """Ask one question after the other, as a client that tries no request twice; return the last answer."""
    history = []
    headers = {"authorization": f"Bearer {endpoint.api_key}"}
    async with httpx.AsyncClient(base_url=endpoint.base_url, headers=headers, timeout=30) as client:
        for text in texts:
            history.append({"role": "user", "content": text})
            answer = await client.post("chat/completions", json={"messages": history, **fields})
            answer.raise_for_status()
            history.append(answer.json()["choices"][0]["message"])
    return history[-1]["content"]


@pytest.fixture
async def play(chat_agent):
    """Run one episode: `await play(run, answers, limits=..., reward=...)`; answers are texts, replies or errors."""
    executors = []

    async def run_one(run, answers=("fine",), *, limits=None, reward=None, seed_for=None, engine=None, **options):
        def answer(request):
            said = answers[request.index % len(answers)]
            if isinstance(said, Exception):
                raise said
            return said if isinstance(said, Reply) else chat_agent.codec.encode(f"{said}<|end|>").tolist()

        engine = engine or ScriptedEngine(answer, **options)
        agent = Hosted(run) if callable(run) else run
        executor = AgentEpisodes(chat_agent, agent, limits or Limits(), reward=reward, name="'the agent'")
        executors.append(executor)
        await executor.start()
        async with asyncio.timeout(60):
            trajectory = await executor.run(TASK, 3, engine, SAMPLING, seed_for)
        assert executor.server._sessions == {}
        assert not hasattr(engine, "num_running") or engine.num_running == 0
        return trajectory

    yield run_one
    for executor in executors:
        async with asyncio.timeout(60):
            await executor.close()


@pytest.fixture(scope="module")
def chat_agent(tiny_model) -> ChatAgent:
    from turngym.agents.tokenizer import load_tokenizer

    return ChatAgent(load_tokenizer(str(tiny_model)))


async def test_what_the_agent_returns_is_its_reward(play):
    async def run(task, endpoint):
        said = await ask(endpoint, task.prompt, "Really?")
        return {"reward": 2 if said == "yes" else 0, "score": 1, "extra_logs": {"length": len(said)}}

    trajectory = await play(run, ["fine", "yes"])
    assert trajectory.failure is None
    assert (trajectory.end_reason, trajectory.num_turns, trajectory.attempt) == (EndReason.TERMINATED, 2, 3)
    assert trajectory.rewards_per_turn.tolist() == [0.0, 2.0]
    assert (trajectory.score, trajectory.extra_logs["length"]) == (1.0, 3.0)
    assert (trajectory.extra_logs["history/continued"], trajectory.extra_logs["history/thoughts_dropped"]) == (1.0, 0.0)
    assert trajectory.turn_ends == (TurnEnd.STOP, TurnEnd.STOP)
    assert [message["content"] for message in trajectory.messages] == ["How are you?", "fine", "Really?", "yes"]
    (sequence,) = trajectory.sequences
    assert sequence.num_actions == len("fine") + 1 + len("yes") + 1
    assert set(trajectory.seconds) == {"env", "render", "generate", "total"}


async def test_rewards_of_each_turn(play):
    async def run(task, endpoint):
        await ask(endpoint, "a", "b", "c")
        return {"rewards": [1, -0.5, True]}

    assert (await play(run)).rewards_per_turn.tolist() == [1.0, -0.5, 1.0]


async def test_a_shape_that_is_refused_is_told_the_agent_and_fails_nothing(play):
    async def run(task, endpoint):
        with pytest.raises(httpx.HTTPStatusError, match="400"):
            await ask(endpoint, "a", guided_regex="(")
        await ask(endpoint, "b", guided_regex="fine", presence_penalty=1)
        return 1

    trajectory = await play(run, [RequestRefusedError("no such grammar"), "fine"])
    assert (trajectory.failure, trajectory.reward) == (None, 1.0)
    (sequence,) = trajectory.sequences
    assert sequence.samplings[0].shape == Shape(Grammar.regex("fine"))  # a penalty is the run's to set
    assert sequence.is_shaped.tolist() == sequence.is_action.tolist()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "--reward.remote_url"),
        ("3", "'3'"),
        (float("nan"), "nan"),
        ({"score": 1}, "'reward'"),
        ({"reward": 1, "rewards": [1]}, "either"),
        ({"rewards": [1, 2]}, "answered 1 times"),
        ({"reward": 1, "extra_logs": 3}, "extra_logs"),
        ({"reward": None}, "None"),
    ],
)
async def test_what_is_no_reward_is_a_failure(play, returned, message):
    async def run(task, endpoint):
        await ask(endpoint, "a")
        return returned

    trajectory = await play(run)
    assert trajectory.failure.kind is FailureKind.REWARD
    assert message in trajectory.failure.message
    assert trajectory.num_actions == 5  # what was sampled stays for eyes
    assert len(trajectory.rewards_per_turn) == 0


async def test_a_reward_function_scores_the_last_answer_and_nothing_that_was_said_to_the_model(play):
    """R64: what a tool says is no answer, even if it is the right one."""
    seen = []

    async def reward(queries, prompts, labels):
        seen.append((queries, prompts, labels))
        return [Reward(0.5, 0.25, {"x": 1.0})]

    async def run(task, endpoint):
        await ask(endpoint, "a", r"b \boxed{42}")

    trajectory = await play(run, reward=reward)
    first = "<|start|>user:a<|end|><|start|>assistant:"
    assert seen == [([first + "fine<|end|>"], [first], ["fine"])]
    assert trajectory.rewards_per_turn.tolist() == [0.0, 0.5]
    assert (trajectory.score, trajectory.extra_logs["x"]) == (0.25, 1.0)


async def test_of_several_branches_the_last_answer_is_scored(play):
    seen = []

    async def reward(queries, prompts, labels):
        seen.extend(zip(queries, prompts, strict=True))
        return [Reward(1.0, 1.0)]

    async def run(task, endpoint):
        await ask(endpoint, "main")
        await ask(endpoint, "helper")
        await ask(endpoint, "main", "end")

    trajectory = await play(run, ["a", "b", "a", "last"], reward=reward)
    first = "<|start|>user:main<|end|><|start|>assistant:"
    ((query, prompt),) = seen
    assert query.startswith(first)
    assert query.endswith("last<|end|>")
    assert prompt == first
    assert trajectory.messages[-1]["content"] == "last"
    assert trajectory.num_turns == 4
    assert trajectory.rewards_per_turn.tolist() == [0, 0, 0, 1]


async def test_an_agent_that_raises_has_failed(play):
    async def run(task, endpoint):
        await ask(endpoint, "a")
        raise KeyError("its own mistake")

    trajectory = await play(run)
    assert (trajectory.failure.kind, trajectory.failure.turn) == (FailureKind.ENV, 0)
    assert "its own mistake" in trajectory.failure.message
    assert trajectory.end_reason is EndReason.FAILED


async def test_an_agent_that_asks_nothing_has_failed(play):
    async def run(task, endpoint):
        return 1.0

    trajectory = await play(run)
    assert trajectory.failure.kind is FailureKind.ENV
    assert "base_url" in trajectory.failure.message


async def test_a_first_prompt_that_is_too_long(play):
    async def run(task, endpoint):
        await ask(endpoint, "a" * 100)

    trajectory = await play(run, limits=Limits(max_context=64))
    assert trajectory.failure.kind is FailureKind.PROMPT_TOO_LONG


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EngineError("no"), FailureKind.ENGINE),
        (EngineDeadError("gone"), FailureKind.ENGINE_DEAD),
        (RuntimeError("a bug"), FailureKind.ENGINE),
    ],
)
async def test_a_failing_engine_is_its_own_kind_of_failure_even_if_the_agent_goes_on(play, error, kind):
    async def run(task, endpoint):
        await ask(endpoint, "a")
        try:
            await ask(endpoint, "b")
        except httpx.HTTPStatusError:
            return 0.0

    trajectory = await play(run, ["fine", error])
    assert trajectory.failure.kind is kind
    assert str(error) in trajectory.failure.message


async def test_a_repetition_makes_good_what_the_engine_failed_at(play):
    async def run(task, endpoint):
        with pytest.raises(httpx.HTTPStatusError):
            await ask(endpoint, "a")
        await ask(endpoint, "a")
        return 1.0

    trajectory = await play(run, [EngineError("once"), "fine"])
    assert trajectory.failure is None
    assert trajectory.num_turns == 1


@pytest.mark.parametrize("limits", [Limits(), Limits(max_turns=1)])
async def test_an_answer_that_was_sampled_and_lost_fails_the_episode_whatever_the_agent_is_told_later(
    play, limits, monkeypatch
):
    def broken(self, *arguments, **options):
        raise RuntimeError("cannot be read")

    async def run(task, endpoint):
        with monkeypatch.context() as patch:
            patch.setattr(Reader, "read", broken)
            with pytest.raises(httpx.HTTPStatusError, match="500"):
                await ask(endpoint, "a")
        with contextlib.suppress(httpx.HTTPStatusError):  # refused, as the limits have it
            await ask(endpoint, "b")
        return 1.0

    trajectory = await play(run, limits=limits)
    assert trajectory.failure.kind is FailureKind.TEMPLATE
    assert "cannot be read" in trajectory.failure.message


class Stubborn:
    """An engine of one mind."""

    max_context = 256

    def __init__(self, completion: Completion | None) -> None:
        self._completion = completion

    async def generate(self, *arguments, **words) -> Completion:
        if self._completion is None:
            await asyncio.Event().wait()
        assert self._completion is not None
        return self._completion


def completion(length: int, reason: StopReason) -> Completion:
    return Completion(np.full(length, 5, np.int32), np.zeros(length, np.float32), np.zeros(length, np.int32), reason)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (None, FailureKind.ENGINE_TIMEOUT),
        (completion(3, StopReason.ABORT), FailureKind.ENGINE),
        (completion(50, StopReason.STOP), FailureKind.ENGINE),
        (replace(completion(3, StopReason.STOP), logprobs=None), FailureKind.ENGINE),
    ],
)
async def test_no_answer_half_an_answer_and_more_than_one(play, said, kind):
    async def run(task, endpoint):
        await ask(endpoint, "a")

    trajectory = await play(run, engine=Stubborn(said), limits=Limits(generate_timeout_s=0.05))
    assert trajectory.failure.kind is kind


@pytest.mark.slow
async def test_out_of_time_there_is_no_reward_but_a_reward_function_has_something_to_score(play):
    async def run(task, endpoint):
        await ask(endpoint, "a")
        await asyncio.Event().wait()

    async def reward(queries, prompts, labels):
        return [Reward(0.5, 0.5)]

    limits = Limits(max_seconds=0.5)
    trajectory = await play(run, limits=limits)
    assert trajectory.failure.kind is FailureKind.ENV_TIMEOUT
    assert "max_seconds" in trajectory.failure.message
    trajectory = await play(run, limits=limits, reward=reward)
    assert (trajectory.end_reason, trajectory.reward) == (EndReason.MAX_SECONDS, 0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "end", "turn_end"),
    [
        (Limits(max_turns=2), EndReason.MAX_TURNS, TurnEnd.STOP),
        (Limits(max_episode_tokens=7), EndReason.MAX_TOKENS, TurnEnd.EPISODE_TOKENS),
        (Limits(max_context=60), EndReason.CONTEXT, TurnEnd.STOP),
    ],
)
async def test_limits_are_told_to_the_agent_and_end_the_episode(play, limits, end, turn_end):
    codes = []

    async def run(task, endpoint):
        try:
            await ask(endpoint, *"abcdefgh")
        except httpx.HTTPStatusError as error:
            codes.append((error.response.status_code, error.response.json()["error"]["code"]))
            raise

    async def reward(queries, prompts, labels):
        return [Reward(1.0, 1.0)]

    trajectory = await play(run, limits=limits, reward=reward)
    assert codes == [(400, "context_length_exceeded" if end is EndReason.CONTEXT else end.value)]
    assert (trajectory.end_reason, trajectory.num_turns) == (end, 2)
    assert trajectory.turn_ends == (TurnEnd.STOP, turn_end)
    trajectory = await play(run, limits=limits)  # the agent raised, and nothing else gives a reward
    assert trajectory.failure.kind is FailureKind.ENV
    assert end.value in trajectory.failure.message


class Tireless:
    """An engine that samples all that it may, a while long."""

    max_context = 256

    async def generate(self, prompt_ids, sampling, *arguments, **words) -> Completion:
        await asyncio.sleep(0.01)
        return completion(sampling.max_tokens, StopReason.LENGTH)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("limit", "num_answers"), [(30, 1), (40, 1), (60, 2), (80, 2), (1000, 8)])
async def test_requests_at_once_keep_to_the_tokens_of_the_episode(play, n, limit, num_answers):
    async def run(task, endpoint):
        answers = [ask(endpoint, str(each), n=n) for each in range(8 // n)]
        for answer in await asyncio.gather(*answers, return_exceptions=True):
            assert isinstance(answer, str) or answer.response.json()["error"]["code"] == "max_tokens"
        return 1.0

    async def reward(queries, prompts, labels):
        return [Reward(1.0, 1.0)]

    trajectory = await play(run, engine=Tireless(), limits=Limits(max_episode_tokens=limit), reward=reward)
    if num_answers < n:
        assert trajectory.failure is not None  # answers to one request are all there, or none
        return
    assert trajectory.failure is None
    assert trajectory.num_actions == min(limit, 8 * SAMPLING.max_tokens)
    assert trajectory.num_turns == num_answers
    assert (trajectory.end_reason is EndReason.MAX_TOKENS) == (num_answers < 8)


async def test_what_a_request_did_not_use_is_left_to_those_behind_it(play):
    async def run(task, endpoint):
        for each in range(3):
            await ask(endpoint, str(each), n=2, max_tokens=SAMPLING.max_tokens // 4)
        return 1.0

    trajectory = await play(run, limits=Limits(max_episode_tokens=SAMPLING.max_tokens))
    assert (trajectory.failure, trajectory.end_reason) == (None, EndReason.TERMINATED)
    assert trajectory.num_actions == 6 * len("fine.")


async def test_what_failed_and_abandoned_requests_held_is_given_back(chat_agent):
    engine, prompt = Stubborn(None), chat_agent.codec.encode("a")
    meter = Meter(engine, Limits(max_episode_tokens=SAMPLING.max_tokens), TASK, 0)
    abandoned = asyncio.create_task(meter.generate(prompt, SAMPLING))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(meter.generate(prompt, SAMPLING))
    done, _ = await asyncio.wait([waiting], timeout=0.01)
    assert not done
    engine._completion = completion(3, StopReason.ABORT)
    abandoned.cancel()
    with pytest.raises(EngineError, match="aborted"):
        await waiting
    engine._completion = completion(30, StopReason.STOP)
    await meter.generate(prompt, SAMPLING)
    engine._completion = completion(10, StopReason.LENGTH)
    await meter.generate(prompt, SAMPLING)
    with pytest.raises(ApiError, match="40 tokens"):
        await meter.generate(prompt, SAMPLING)


@pytest.mark.parametrize(
    ("limits", "fields", "turn_end"),
    [
        (Limits(max_turn_tokens=3), {}, TurnEnd.TURN_TOKENS),
        (Limits(), {"max_tokens": 3}, TurnEnd.TURN_TOKENS),
        (Limits(max_context=60), {}, TurnEnd.CONTEXT_TOKENS),
    ],
)
async def test_why_a_completion_was_cut(play, limits, fields, turn_end):
    async def run(task, endpoint):
        await ask(endpoint, "a" * 20, **fields)
        return 1.0

    assert (await play(run, ["x" * 90], limits=limits)).turn_ends == (turn_end,)


async def test_requests_cannot_change_how_is_sampled_and_seeds_go_by_turn(play, chat_agent):
    async def run(task, endpoint):
        await ask(endpoint, "a", "b", temperature=0.1, top_p=0.5)
        return 1.0

    engine = ScriptedEngine(lambda request: chat_agent.codec.encode("ok<|end|>").tolist())
    await play(run, engine=engine, seed_for=lambda task_id, attempt, turn: 100 * attempt + turn)
    assert [(r.sampling.temperature, r.sampling.top_p) for r in engine.requests] == [(1.0, 1.0)] * 2
    assert [r.sampling.seed for r in engine.requests] == [300, 301]
    assert [r.name.split("-")[0] for r in engine.requests] == ["a/b/3/0", "a/b/3/1"]


async def test_a_cancelled_episode_leaves_nothing_behind(chat_agent):
    asked, ended = asyncio.Event(), threading.Event()
    calls = Calls(1, "test-agent")

    async def on_its_own_loop(endpoint):
        try:
            await ask(endpoint, "a")
        finally:
            ended.set()

    async def run(task, endpoint):
        await calls.call(on_its_own_loop, endpoint)

    class Silent(Stubborn):
        async def generate(self, *arguments, **words):
            asked.set()
            return await super().generate()

    executor = AgentEpisodes(chat_agent, Hosted(run), Limits())
    await executor.start()
    episode = asyncio.create_task(executor.run(TASK, 0, Silent(None), SAMPLING))
    async with asyncio.timeout(60):
        await asked.wait()
        episode.cancel()
        with pytest.raises(asyncio.CancelledError):
            await episode
        assert ended.is_set()
        assert executor.server._sessions == {}
        await executor.close()
    calls.close()


@pytest.mark.slow
async def test_no_more_episodes_run_at_once_than_the_agent_bears(chat_agent):
    most = num_running = 0

    async def run(task, endpoint):
        nonlocal most, num_running
        num_running += 1
        most = max(most, num_running)
        await ask(endpoint, "a")
        num_running -= 1
        return 1.0

    agent = Hosted(run)
    agent.max_concurrency = 2
    executor = AgentEpisodes(chat_agent, agent, Limits())
    await executor.start()
    engine = ScriptedEngine(lambda request: chat_agent.codec.encode("ok<|end|>").tolist())
    async with asyncio.timeout(60):
        done = await asyncio.gather(*(executor.run(TASK, number, engine, SAMPLING) for number in range(7)))
        await executor.close()
    assert [trajectory.reward for trajectory in done] == [1.0] * 7
    assert most == 2
