"""Where two plays of one episode first differ; every byte is a token here."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import SequenceBuilder
from turngym.envs.base import Env
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind
from turngym.executors.traces.compare import Difference, first_difference
from turngym.executors.traces.replay import Tape
from turngym.executors.traces.turns import turns_of

SAMPLING = Sampling(max_tokens=8)


class Story(Env):
    """Says and rewards what it is told to, one pair a step; a pair that is an exception is raised."""

    def __init__(self, *pairs, first="go", truncates=False, score=None):
        self.pairs = list(pairs)
        self.first = first
        self.truncates = truncates
        self.score = score

    def reset(self, *, seed=None, options=None):
        if isinstance(self.first, Exception):
            raise self.first
        return self.first, {}

    def step(self, action):
        pair = self.pairs.pop(0)
        if isinstance(pair, Exception):
            raise pair
        is_over = not self.pairs
        return pair[0], pair[1], is_over and not self.truncates, is_over and self.truncates, {"score": self.score}


PLAIN = (("warm", 0.0), ("hot", 0.5), ("done", 1.0))


@pytest.fixture
def replayed(play):
    """Play a story with given words, play another with the recording, and return the first difference."""

    async def run(before, after, words=("a", "b", "c"), *, change=lambda trajectory: trajectory, limits=None, **now):
        engine = ScriptedEngine([word if isinstance(word, Reply) else list(word.encode()) for word in words])
        recorded = change(await play(before, engine, SAMPLING, **(limits or {})))
        tape = Tape(recorded)
        again = await play(after, ScriptedEngine(tape), SAMPLING, **{**(limits or {}), **now})
        return first_difference(recorded, again, lambda ids: bytes(ids).decode("latin-1"), ran_out=tape.ran_out)

    return lambda *arguments, **keywords: asyncio.run(run(*arguments, **keywords))


def story(*pairs, **changes):
    return lambda: Story(*(pairs or PLAIN), **changes)


def test_the_same_environment_does_the_same(replayed):
    assert replayed(story(), story()) is None


@pytest.mark.parametrize(
    ("after", "turn", "what", "recorded", "now"),
    [
        (story(first="begin"), -1, "observation", "[user] go", "[user] begin"),
        (story(("warm", 0.0), ("cold", 0.5), ("done", 1.0)), 1, "observation", "[user] hot", "[user] cold"),
        (story(("warm", 0.0), ("hot", 0.25), ("other", 1.0)), 1, "reward", "0.5", "0.25"),
        (story(("warm", 0.0), ("hot", 0.5), ("", 1.0)), 2, "observation", "[user] done", ""),
        (story(*PLAIN, ("more", 0.0)), 2, "end", "terminated after 3 turns", "the episode goes on"),
        (story(*PLAIN[:2]), 1, "end", "terminated after 3 turns", "terminated after 2 turns"),
        (story(truncates=True), 2, "end", "terminated after 3 turns", "truncated after 3 turns"),
        (story(score=0.5), 2, "score", "None", "0.5"),
    ],
)
def test_the_first_thing_that_differs_is_named(replayed, after, turn, what, recorded, now):
    assert replayed(story(), after) == Difference(turn, what, recorded, now)


def test_what_breaks_now_is_told_as_an_end(replayed):
    difference = replayed(story(), story(("warm", 0.0), RuntimeError("boom"), ("done", 1.0)))
    assert (difference.turn, difference.what, difference.recorded) == (1, "end", "terminated after 3 turns")
    assert difference.now.startswith("failed (env) in turn 1: RuntimeError: boom")
    difference = replayed(story(), story(first=RuntimeError("boom")))
    assert (difference.turn, difference.what) == (-1, "end")


def test_what_broke_and_is_mended_is_told_as_an_end(replayed):
    difference = replayed(story(("warm", 0.0), RuntimeError("boom"), ("done", 1.0)), story())
    assert (difference.turn, difference.what, difference.now) == (1, "end", "the episode goes on")
    assert "boom" in difference.recorded
    difference = replayed(story(first=RuntimeError("boom")), story())
    assert (difference.turn, difference.what, difference.now) == (-1, "end", "the episode goes on")


def test_what_breaks_as_it_did_is_equal(replayed):
    broken = story(("warm", 0.0), RuntimeError("boom"), ("done", 1.0))
    assert replayed(broken, story(("warm", 0.0), RuntimeError("another line"), ("done", 1.0))) is None
    difference = replayed(broken, story(("warm", 0.0), TimeoutError("late"), ("done", 1.0)))
    assert (difference.turn, difference.what) == (1, "end")


def test_an_episode_that_ended_in_silence_and_now_goes_on(replayed):
    silent = story(("warm", 0.0), ("", 1.0))
    difference = replayed(silent, story(("warm", 0.0), ("", 1.0), ("more", 0.0)), ("a", "b"))
    assert difference == Difference(1, "end", "terminated after 2 turns", "the episode goes on")


def test_a_template_that_ends_an_episode_otherwise_differs(replayed):
    def longer(trajectory):
        (sequence,) = trajectory.sequences
        builder = SequenceBuilder()
        builder.add_context(list(b"?"), 2)
        more = builder.build()
        names = ("token_ids", "is_action", "logprobs", "versions", "turn")
        arrays = {name: np.concatenate([getattr(sequence, name), getattr(more, name)]) for name in names}
        return replace(trajectory, sequences=(replace(sequence, **arrays),))

    assert replayed(story(), story(), change=longer) == Difference(
        2, "tokens of the observation", "u:done|?", "u:done|"
    )


def test_limits_and_aborts_come_again(replayed):
    cut = {"max_turn_tokens": 2, "max_episode_tokens": 5}
    assert replayed(story(), story(), ("aaaa", "bbbb", "cccc"), limits=cut) is None
    difference = replayed(story(), story(), ("aaaa", "bbbb", "cccc"), limits=cut, max_turn_tokens=1)
    assert difference == Difference(0, "completion", "aa", "a")
    aborted = Reply(list(b"bb"), [-1, -1], stop_reason=StopReason.ABORT)
    assert replayed(story(), story(), ("a", aborted)) is None


def test_an_end_by_the_engine_or_the_clock_cannot_come_again(replayed):
    assert replayed(story(), story(), ("a", "b")) is None  # the engine failed in turn 2
    out_of_time = {"change": lambda t: replace(t, end_reason=EndReason.MAX_SECONDS)}
    longer = story(*PLAIN, ("more", 0.0))
    assert replayed(story(), longer, **out_of_time) is None
    difference = replayed(story(), story(*PLAIN[:2]), **out_of_time)
    assert (difference.turn, difference.what) == (1, "end")


def test_what_became_stale_may_have_ended_anyhow(replayed):
    failure = Failure(FailureKind.STALE, "too old", 2)
    stale = {"change": lambda t: replace(t, end_reason=EndReason.FAILED, failure=failure)}
    assert replayed(story(), story(), **stale) is None
    assert replayed(story(), story(truncates=True), **stale) is None
    assert replayed(story(), story(*PLAIN, ("more", 0.0)), **stale) is None
    assert replayed(story(), story(("warm", 0.0), ("hot", 0.5), ("end", 1.0)), **stale).what == "observation"
    assert replayed(story(), story(*PLAIN[:2]), **stale).turn == 1
    assert replayed(story(), story(("warm", 0.0), RuntimeError("boom"), ("x", 0.0)), **stale).turn == 1


def test_long_texts_are_shown_around_the_place_that_differs(replayed):
    long = "x" * 300
    difference = replayed(story(first=f"{long}A{long}"), story(first=f"{long}B{long}"), limits={"max_context": 4000})
    assert difference.recorded == f"...{'x' * 24}A{'x' * 239}..."
    assert difference.now == f"...{'x' * 24}B{'x' * 239}..."


def test_the_same_text_in_other_tokens_differs(play, echo):
    """Token 256 stands for the bytes "ab": text is equal, tokens are not."""
    recorded = asyncio.run(play(lambda: echo(turns=1), ScriptedEngine([list(b"ab")]), SAMPLING))
    now = asyncio.run(play(lambda: echo(turns=1), ScriptedEngine([[256]]), SAMPLING))

    def decode(ids):
        return "".join("ab" if token == 256 else chr(token) for token in ids)

    difference = first_difference(recorded, now, decode, ran_out=False)
    assert difference == Difference(0, "tokens of the completion", "[97, 98]", "[256]")


def test_a_fork_is_seen_in_the_turn_it_happens_in(play):
    """The second play rewrites history in turn 0, where the first goes on."""
    recorded = asyncio.run(play(story(("hot", 0.0), ("done", 1.0)), ScriptedEngine([list(b"a"), list(b"b")]), SAMPLING))
    (whole,) = recorded.sequences
    parent, child = SequenceBuilder(), SequenceBuilder(parent=(0, 6), fork_reason="rewritten")
    before = whole.turn == -1
    parent.add_context(whole.token_ids[before], -1)
    child.add_context(whole.token_ids[before], -1)
    child.add_context(list(b"_u:hot|>"), 0)
    first, second = (np.flatnonzero(whole.is_action & (whole.turn == turn)) for turn in (0, 1))
    for builder, places, turn in ((parent, first, 0), (child, second, 1)):
        said = whole.token_ids[places], whole.logprobs[places], whole.versions[places]
        builder.add_completion(Completion(*said, StopReason.STOP), SAMPLING, turn)
    child.add_context(whole.token_ids[second[-1] + 1 :], 1)
    forked = replace(recorded, sequences=(parent.build(), child.build()))
    assert [turn.token_ids.tolist() for turn in turns_of(forked)[1:]] == [[97], [98]]
    difference = first_difference(recorded, forked, lambda ids: bytes(ids).decode(), ran_out=False)
    assert difference == Difference(0, "tokens of the observation", "u:hot|>", "_u:hot|>")
