import asyncio
from dataclasses import replace

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import AsyncEnv, Env
from turngym.envs.messages import RawText
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import SingleTurn
from turngym.executors.episodes.trajectory import EndReason, FailureKind, TurnEnd

A = ord("a")
SAMPLING = Sampling(max_tokens=10)


def says(*texts):
    return ScriptedEngine([list(text.encode()) for text in texts])


def test_two_turns_are_recorded_token_for_token(play, echo):
    trajectory = asyncio.run(play(lambda: echo(turns=2), says("xy", "z"), SAMPLING))
    assert trajectory.end_reason is EndReason.TERMINATED
    assert trajectory.failure is None
    assert trajectory.rewards_per_turn.tolist() == [1.0, 1.0]
    assert trajectory.reward == 2.0
    assert trajectory.turn_ends == (TurnEnd.STOP, TurnEnd.STOP)
    (sequence,) = trajectory.sequences
    assert bytes(sequence.token_ids.tolist()) == b"u:go|>xyu:.|>zu:.|"
    assert np.flatnonzero(sequence.is_action).tolist() == [6, 7, 13]
    assert sequence.turn.tolist() == [-1] * 6 + [0] * 7 + [1] * 5
    np.testing.assert_array_equal(sequence.logprobs[sequence.is_action], np.full(3, np.log(0.5), np.float32))
    assert [m["role"] for m in trajectory.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert set(trajectory.seconds) == {"generate", "env", "render", "total"}


def test_an_environment_may_truncate(play):
    class Truncates(Env):
        def reset(self, *, seed=None, options=None):
            return "go", {}

        def step(self, action):
            return "", np.float32(0.25), np.bool_(False), np.bool_(True), {"score": np.float64(0.0)}

    trajectory = asyncio.run(play(Truncates, says("x"), SAMPLING))
    assert trajectory.end_reason is EndReason.TRUNCATED
    assert trajectory.reward == 0.25
    assert trajectory.score == 0.0  # a value, not "missing"
    assert bytes(trajectory.sequences[0].token_ids.tolist()) == b"u:go|>x"  # an empty last observation is left out


def test_an_environment_that_never_ends_is_ended_by_max_turns(play, echo):
    trajectory = asyncio.run(play(lambda: echo(turns=10**9), says("a", "b", "c"), SAMPLING, max_turns=3))
    assert trajectory.end_reason is EndReason.MAX_TURNS
    assert trajectory.num_turns == 3
    assert len(trajectory.rewards_per_turn) == 3


def test_tokens_per_turn_and_in_total_are_two_limits(play, echo):
    engine = says("aaaaaaaa", "aaaaaaaa", "aaaaaaaa")
    trajectory = asyncio.run(
        play(lambda: echo(turns=9), engine, Sampling(max_tokens=8), max_turn_tokens=4, max_episode_tokens=6)
    )
    assert [request.sampling.max_tokens for request in engine.requests] == [4, 2]
    assert trajectory.turn_ends == (TurnEnd.TURN_TOKENS, TurnEnd.EPISODE_TOKENS)
    assert trajectory.end_reason is EndReason.MAX_TOKENS
    assert trajectory.num_actions == 6
    assert trajectory.rewards_per_turn.tolist() == [1.0, 1.0]


def test_a_full_context_ends_the_episode(play, echo):
    engine = says("aaaa", "aaaa", "aaaa")
    # 6 prompt + 4 + 5 observation ("u:.|>") = 15, so that 1 token is left of 16.
    trajectory = asyncio.run(play(lambda: echo(turns=9), engine, Sampling(max_tokens=4), max_context=16))
    assert trajectory.turn_ends == (TurnEnd.TURN_TOKENS, TurnEnd.CONTEXT_TOKENS)
    assert trajectory.end_reason is EndReason.CONTEXT
    assert trajectory.is_valid
    assert len(trajectory.sequences[0]) == 16  # the observation that nobody will answer is cut
    assert trajectory.num_actions == 5


def test_the_engines_context_holds_beside_the_limit(play, echo):
    engine = ScriptedEngine([[A] * 9], max_context=8)
    trajectory = asyncio.run(play(lambda: echo(turns=1), engine, SAMPLING, max_context=100))
    assert trajectory.turn_ends == (TurnEnd.CONTEXT_TOKENS,)
    assert trajectory.end_reason is EndReason.TERMINATED


def test_a_first_prompt_that_is_too_long_calls_no_engine(play, echo):
    engine = says("x")
    trajectory = asyncio.run(play(lambda: echo(), engine, SAMPLING, max_context=6))
    assert trajectory.failure.kind is FailureKind.PROMPT_TOO_LONG
    assert trajectory.failure.turn == -1
    assert "6 tokens" in trajectory.failure.message
    assert engine.requests == []


def test_an_empty_completion_is_a_turn(play, echo):
    trajectory = asyncio.run(play(lambda: echo(turns=1), says(""), SAMPLING))
    assert trajectory.end_reason is EndReason.TERMINATED
    assert trajectory.num_turns == 1
    assert trajectory.num_actions == 0
    assert trajectory.reward == 1.0


@pytest.mark.slow
def test_time_running_out_drops_the_unfinished_turn(play, echo):
    slow = Reply([A, A], [-1.0, -1.0], latency_s=60.0)
    trajectory = asyncio.run(play(lambda: echo(turns=9), ScriptedEngine([[A], slow]), SAMPLING, max_seconds=0.3))
    assert trajectory.end_reason is EndReason.MAX_SECONDS
    assert trajectory.is_valid
    assert trajectory.rewards_per_turn.tolist() == [1.0]
    assert trajectory.num_actions == 1  # no token whose reward is not known
    assert trajectory.num_turns == 1


def test_time_running_out_before_any_reward_is_a_failure(play, echo):
    slow = Reply([A], [-1.0], latency_s=60.0)
    trajectory = asyncio.run(play(lambda: echo(), ScriptedEngine([slow]), SAMPLING, max_seconds=0.1))
    assert trajectory.failure.kind is FailureKind.ENGINE_TIMEOUT
    assert "max_seconds=0.1" in trajectory.failure.message


@pytest.mark.slow
def test_a_step_in_progress_gets_its_reward_when_the_time_runs_out(play):
    class Slow(AsyncEnv):
        async def reset(self, *, seed=None, options=None):
            return "go", {}

        async def step(self, action):
            await asyncio.sleep(0.3)
            return "more", 0.5, False, False, {}

    trajectory = asyncio.run(play(Slow, says("x", "y"), SAMPLING, max_seconds=0.15))
    assert trajectory.end_reason is EndReason.MAX_SECONDS
    assert trajectory.rewards_per_turn.tolist() == [0.5]


def test_single_turn_asks_once(pool, byte_agent, echo, task):
    executor = SingleTurn(byte_agent, lambda: echo(turns=1), pool, Limits())
    trajectory = asyncio.run(executor.run(task, 0, says("x"), SAMPLING))
    assert trajectory.end_reason is EndReason.TERMINATED
    unfinished = SingleTurn(byte_agent, lambda: echo(turns=5), pool, Limits())
    trajectory = asyncio.run(unfinished.run(task, 0, says("x"), SAMPLING))
    assert trajectory.end_reason is EndReason.MAX_TURNS
    assert trajectory.num_turns == 1


@pytest.mark.parametrize("turns", [1, 3])
def test_a_split_that_no_tokenizer_makes_is_kept_bit_for_bit(play, echo, nan_equal, turns):
    """R13: [256] and [97, 98] are the same text; what was sampled is what is trained on."""
    splits = [[256, 120], [97, 98, 120], [256, 256]][:turns]
    logprobs = [np.array([-0.1, -1 / 3], np.float32), np.array([-3e-9, -20, -1], np.float32), np.float32([-2, -4])]
    engine = ScriptedEngine([Reply(ids, lp) for ids, lp in zip(splits, logprobs, strict=False)])
    trajectory = asyncio.run(play(lambda: echo(turns=turns), engine, SAMPLING))
    (sequence,) = trajectory.sequences
    trained = sequence.token_ids[sequence.is_action]
    assert nan_equal(trained, np.concatenate(splits).astype(np.int32))
    assert nan_equal(sequence.logprobs[sequence.is_action], np.concatenate(logprobs[:turns]))
    assert trajectory.messages[1]["content"] == "abx"
    for request in engine.requests:  # each prompt is what went before, as it was sampled
        assert nan_equal(request.prompt_ids, sequence.token_ids[: len(request.prompt_ids)])


def test_info_scores_and_logs_are_taken_the_last_one_wins(play):
    class Logs(Env):
        turn = 0

        def reset(self, *, seed=None, options=None):
            return "go", {"extra_logs": {"start": 1}}

        def step(self, action):
            self.turn += 1
            logs = {"x": self.turn, "only_first": 5.0} if self.turn == 1 else {"x": np.int64(self.turn)}
            info = {"score": 0.5 * self.turn, "extra_logs": logs, "other": object()}
            return ".", 0, self.turn == 2, False, info

    trajectory = asyncio.run(play(Logs, says("a", "b"), SAMPLING))
    assert trajectory.score == 1.0
    assert trajectory.extra_logs == {"start": 1.0, "x": 2.0, "only_first": 5.0}


def test_raw_text_is_appended_as_it_is(play):
    class Raw(Env):
        def reset(self, *, seed=None, options=None):
            return RawText("Q"), {}

        def step(self, action):
            return RawText("feedback"), 1.0, True, False, {}

    trajectory = asyncio.run(play(Raw, says("x"), SAMPLING))
    assert bytes(trajectory.sequences[0].token_ids.tolist()) == b"Q>xfeedback"


def test_the_environment_gets_task_seed_query_and_cut(play, task, multi_turn):
    seen = {}

    class Looks(Env):
        wants_query = True

        def reset(self, *, seed=None, options=None):
            seen.update(seed=seed, task=options["task"])
            return "go", {}

        def step(self, action):
            seen.update(query=action.query, is_cut=action.is_cut)
            return "", 0.0, True, False, {}

    seeded = replace(task, seed=17)
    asyncio.run(multi_turn(Looks).run(seeded, 0, says("xxxx"), Sampling(max_tokens=2)))
    assert seen == {"seed": 17, "task": seeded, "query": "u:go|>xx", "is_cut": True}


def test_seeds_are_given_only_for_full_determinism(multi_turn, echo, task):
    engine = ScriptedEngine(lambda request: [A])
    executor = multi_turn(lambda: echo(turns=2))
    asyncio.run(executor.run(task, 3, engine, SAMPLING))
    asyncio.run(executor.run(task, 3, engine, SAMPLING, lambda task_id, attempt, turn: 1000 * attempt + turn))
    assert [request.sampling.seed for request in engine.requests] == [None, None, 3000, 3001]
    assert engine.requests[1].name == "t/3/1"
