"""Games whose sides are all the policy's: each has a conversation, a reward and a trajectory of its own."""

from contextlib import nullcontext

import numpy as np
import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import AsyncEnv
from turngym.envs.factory import EnvFactory
from turngym.envs.resolution import resolve
from turngym.envs.task import Task
from turngym.errors import EngineDeadError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.trajectory import EndReason, FailureKind
from turngym.executors.episodes.tree import run_attempts

SAMPLING = Sampling(max_tokens=4)
TASK = Task(id="t", prompt="go")


class Count(AsyncEnv):
    """Sides say letters in turn; "!" may be said again, "." wins and "," loses. `log` holds what happens."""

    log: list[str]

    @classmethod
    def num_sides(cls, kwargs):
        return 2

    def __init__(self, first: int = 0, rewards: object = None) -> None:
        self._side = first
        self._rewards = rewards

    async def reset(self, *, seed=None, options=None):
        self.log.append("reset")
        return f"you {self._side}", {"side": self._side}

    async def step(self, action):
        self.log.append(f"{self._side}{action}")
        if action == "?":
            raise ValueError("no such move")
        if action in (".", ","):
            winner = self._side if action == "." else 1 - self._side
            rewards = [1.0 if side == winner else -1.0 for side in (0, 1)]
            info = {"rewards": self._rewards or rewards, "scores": [(1 + reward) / 2 for reward in rewards]}
            return "", rewards[self._side], True, False, info
        if action != "!":
            self._side = 1 - self._side
        return f"{action} you {self._side}", 0.25 if action == "+" else 0.0, False, False, {"side": self._side}

    async def close(self):
        self.log.append("close")


@pytest.fixture
def count():
    class Own(Count):
        log: list[str] = []

    return Own


@pytest.fixture
def play(multi_turn):
    """Run attempts; what attempt `a` says in its turns is `moves[a]`."""

    async def run(env_class, moves, attempts=(0, 1), max_retries=0, **limits):
        def script(request):
            _, attempt, turn = request.name.split("/")
            move = moves[int(attempt)][int(turn)]
            if isinstance(move, Exception):
                raise move
            return [ord(move)]

        kwargs = limits.pop("kwargs", {})
        executor = multi_turn(EnvFactory("Count", env_class, kwargs), **limits)
        engine = ScriptedEngine(script)
        return await run_attempts(
            executor,
            TASK,
            attempts,
            lambda attempt: nullcontext(engine),
            SAMPLING,
            max_retries=max_retries,
            backoff_s=0,
        )

    return run


def shown(trajectory) -> str:
    (sequence,) = trajectory.sequences
    return bytes(sequence.token_ids.astype(np.uint8)).decode()


def sampled(trajectory) -> str:
    (sequence,) = trajectory.sequences
    return bytes(sequence.token_ids[sequence.is_action].astype(np.uint8)).decode()


async def test_each_side_has_its_conversation_its_tokens_and_its_reward(count, play):
    zero, one = await play(count, {0: "ac", 1: "b."})
    assert shown(zero) == "u:you 0|>au:b you 0|>c"
    assert shown(one) == "u:a you 1|>bu:c you 1|>."
    assert (sampled(zero), sampled(one)) == ("ac", "b.")
    assert (zero.attempt, one.attempt) == (0, 1)
    assert (zero.rewards_per_turn.tolist(), one.rewards_per_turn.tolist()) == ([0.0, -1.0], [0.0, 1.0])
    assert (zero.score, one.score) == (0.0, 1.0)
    assert zero.end_reason is one.end_reason is EndReason.TERMINATED
    assert count.log == ["reset", "0a", "1b", "0c", "1.", "close"]


async def test_a_side_may_move_again_and_the_other_may_begin(count, play):
    zero, one = await play(count, {0: "+.", 1: "!a,"}, kwargs={"first": 1})
    assert count.log == ["reset", "1!", "1a", "0+", "1,", "close"]
    assert zero.rewards_per_turn.tolist() == [1.25]  # its move, and the end that came before its next turn
    assert one.rewards_per_turn.tolist() == [0.0, 0.0, -1.0]
    assert shown(one).startswith("u:you 1|>!u:! you 1|>a")


async def test_attempts_pair_up_and_half_of_them_play_each_side(count, play):
    leaves = await play(count, {0: "a", 1: ".", 2: ",", 3: "", 4: "ab", 5: "c."}, attempts=range(6))
    assert [leaf.attempt for leaf in leaves] == list(range(6))
    assert [leaf.reward for leaf in leaves if leaf.is_valid] == [-1.0, 1.0, -1.0, -1.0, 1.0]
    assert leaves[3].failure.kind is FailureKind.NO_TURN  # nothing was sampled: no episode, whatever the game gave it
    assert leaves[2].is_valid


async def test_of_a_game_that_only_one_side_is_wanted_of_the_other_is_played_too(count, play):
    (one,) = await play(count, {0: "a", 1: "."}, attempts=(1,))
    assert (one.attempt, one.reward, sampled(one)) == (1, 1.0, ".")
    assert count.log == ["reset", "0a", "1.", "close"]


@pytest.mark.parametrize(
    ("moves", "kind"),
    [
        ({0: "a?", 1: "b"}, FailureKind.ENV),
        ({0: "a", 1: [EngineDeadError("gone")]}, FailureKind.ENGINE_DEAD),
    ],
)
async def test_a_game_fails_as_a_whole(count, play, moves, kind):
    zero, one = await play(count, moves)
    assert zero.failure == one.failure
    assert zero.failure.kind is kind
    assert count.log.count("close") == 1


async def test_a_failed_game_is_begun_again_as_a_whole(count, play):
    moves = {0: ["a"], 1: ["?"]}

    class Mends(count):
        async def step(self, action):
            if action == "?":
                moves[1] = ["."]
            return await super().step(action)

    zero, one = await play(Mends, moves, max_retries=1)
    assert (zero.reward, one.reward) == (-1.0, 1.0)
    assert [len(t.earlier_failures) for t in (zero, one)] == [1, 1]
    assert count.log == ["reset", "0a", "1?", "close", "reset", "0a", "1.", "close"]


async def test_where_one_side_meets_a_limit_nobody_has_won(count, play):
    zero, one = await play(count, {0: "ab", 1: "cd"}, max_turns=2)
    assert (zero.end_reason, one.end_reason) == (EndReason.MAX_TURNS, EndReason.TRUNCATED)
    assert (zero.reward, one.reward) == (0.0, 0.0)
    assert (sampled(zero), sampled(one)) == ("ab", "cd")


async def test_what_is_no_game_is_told(count, play):
    for rewards, says in (([1.0], "wanted one for each of 2 sides"), ([1.0, float("nan")], "wanted a finite number")):
        zero, one = await play(count, {0: "a", 1: "."}, kwargs={"rewards": rewards})
        assert says in zero.failure.message
        assert zero.failure == one.failure

    class Lost(count):
        async def reset(self, *, seed=None, options=None):
            return "go", {}

    zero, one = await play(Lost, {0: "a", 1: "."})
    assert "wanted the side whose turn is next" in zero.failure.message
    assert one.failure.kind is FailureKind.ENV


async def test_a_game_of_textarena_by_both_sides(multi_turn):
    pytest.importorskip("textarena", reason="needs the package: pip install 'turngym[textarena]'")
    factory = resolve("textarena/TicTacToe-v0", {"sides": "both"})
    moves = {0: ["[4]", "[3]", "[5]"], 1: ["[0]", "[1]"]}

    def script(request):
        _, attempt, turn = request.name.rsplit("/", 2)
        return list(moves[int(attempt)][int(turn)].encode())

    engine = ScriptedEngine(script, max_context=4096)
    task = factory.tasks("train", 0)[0]
    seats = lambda attempt: nullcontext(engine)  # noqa: E731
    zero, one = await run_attempts(multi_turn(factory), task, (0, 1), seats, SAMPLING)
    assert (zero.failure, one.failure) == (None, None)
    assert (sampled(zero), sampled(one)) == ("[4][3][5]", "[0][1]")
    assert (zero.rewards_per_turn.tolist(), one.rewards_per_turn.tolist()) == ([0.0, 0.0, 1.0], [0.0, -1.0])
    assert (zero.score, one.score) == (1.0, 0.0)
    assert "You are Player 0" in shown(zero)
    assert "You are Player 1" not in shown(zero)
