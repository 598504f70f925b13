"""Tree rollouts: what leaves share, what they have for themselves, and what becomes of them when something fails."""

import asyncio
import itertools
from collections import Counter
from contextlib import nullcontext

import pytest

from turngym.agents.base import Sampling
from turngym.envs.base import AsyncEnv, Env
from turngym.envs.task import Task
from turngym.errors import ConfigError, EngineDeadError, ProgramError, SandboxError
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.branching import Branching, shared_turn
from turngym.executors.episodes.retry import stable_seed
from turngym.executors.episodes.trajectory import EndReason, FailureKind
from turngym.executors.episodes.tree import run_attempts

SAMPLING = Sampling(max_tokens=4)
TASK = Task(id="t", prompt="go")


class Diary(AsyncEnv):
    """Shows all it was told so far; ends at a full stop or after three turns. What happens is written into `log`."""

    log: list[str]

    def __init__(self):
        self.told = ""

    async def reset(self, *, seed=None, options=None):
        self.log.append("reset")
        return "go", {}

    async def step(self, action):
        self.told += action
        await self.hit(f"step {self.told}")
        is_over = action == "." or len(self.told) == 3
        return self.told, float(len(self.told)), is_over, False, {"extra_logs": {"told": len(self.told)}}

    @property
    def can_fork(self):
        return True

    async def fork(self):
        await self.hit(f"fork {self.told}")
        twin = type(self)()
        twin.told = self.told
        return twin

    async def close(self):
        self.log.append(f"close {self.told}")

    async def hit(self, what):
        self.log.append(what)


@pytest.fixture
def diary():
    """Make a class of diaries with a log of its own, whose environments do at times what `hit` says."""

    def make(hit=lambda what: None):
        class Own(Diary):
            log: list[str] = []

            async def hit(self, what):
                await super().hit(what)
                outcome = hit(what)
                if outcome is not None:
                    await outcome

        return Own

    return make


def letters(request):
    """Say the attempt's letter, in capitals in the first turn: the engine sees who asks and nothing else of a tree."""
    _, attempt, turn = request.name.split("/")
    return [(ord("A") if turn == "0" else ord("a")) + int(attempt)]


@pytest.fixture
def grow(multi_turn):
    """Run attempts: `leaves = await grow(env_class, attempts, turns, factor)`; all that is made must be closed."""

    async def run(env_class, attempts=(0, 1), turns=(0,), factor=2, script=letters, seed_for=None, max_retries=1):
        engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(script)
        executor = multi_turn(env_class)
        async with asyncio.timeout(60):
            leaves = await run_attempts(
                executor,
                TASK,
                attempts,
                lambda attempt: nullcontext(engine),
                SAMPLING,
                seed_for,
                branching=Branching(tuple(turns), factor),
                max_retries=max_retries,
                backoff_s=0.0,
            )
        assert executor.env_pool.stats().counts.num_envs == 0
        run.engine = engine
        return leaves

    return run


def texts(leaves):
    return [bytes(leaf.sequences[0].token_ids.tolist()).decode() for leaf in leaves]


def told(leaves):
    return ["".join(m["content"] for m in leaf.messages if m["role"] == "assistant") for leaf in leaves]


async def test_leaves_share_a_turn_and_go_on_by_themselves(grow, diary):
    env_class = diary()
    leaves = await grow(env_class, attempts=(0, 1, 2, 3))
    assert texts(leaves) == [
        "u:go|>Au:A|>au:Aa|>au:Aaa|",
        "u:go|>Au:A|>bu:Ab|>bu:Abb|",
        "u:go|>Cu:C|>cu:Cc|>cu:Ccc|",
        "u:go|>Cu:C|>du:Cd|>du:Cdd|",
    ]
    assert [leaf.attempt for leaf in leaves] == [0, 1, 2, 3]
    assert [leaf.branch_of for leaf in leaves] == [None, (0, 0), None, (2, 0)]
    assert [(leaf.num_actions, leaf.num_sampled) for leaf in leaves] == [(3, 3), (3, 2), (3, 3), (3, 2)]
    assert all(leaf.rewards_per_turn.tolist() == [1.0, 2.0, 3.0] for leaf in leaves)
    assert all(leaf.end_reason is EndReason.TERMINATED and leaf.extra_logs == {"told": 3} for leaf in leaves)
    assert all(leaf.num_turns == 3 and not leaf.earlier_failures for leaf in leaves)
    assert len(grow.engine.requests) == 10  # of 12 turns
    for leaf in leaves:
        (sequence,) = leaf.sequences
        assert sequence.turn[sequence.is_action].tolist() == [0, 1, 2]
        assert sequence.samplings.keys() == {0, 1, 2}


async def test_each_environment_is_its_own_and_closed_once(grow, diary):
    env_class = diary()
    await grow(env_class)
    counts = Counter(env_class.log)
    assert counts == Counter(
        ["reset", "fork A", "step A", "step Aa", "step Ab", "step Aaa", "step Abb", "close Aaa", "close Abb"]
    )


async def test_two_branches_make_four_leaves_of_each_trunk(grow, diary):
    leaves = await grow(diary(), attempts=range(8), turns=(0, 1))
    assert told(leaves) == ["Aaa", "Aab", "Acc", "Acd", "Eee", "Eef", "Egg", "Egh"]
    assert [leaf.branch_of for leaf in leaves] == [None, (0, 1), (0, 0), (2, 1), None, (4, 1), (4, 0), (6, 1)]
    branches = {leaf.attempt: leaf.branch_of for leaf in leaves}
    others = (0, 1, 2, 4, 5, 6, 7)
    assert [shared_turn(branches, 3, other) for other in others] == [0, 0, 1, None, None, None, None]
    assert len(grow.engine.requests) == 2 * (1 + 2 + 4)


async def test_three_ways_after_the_second_turn(grow, diary):
    leaves = await grow(diary(), attempts=(0, 1, 2), turns=(1,), factor=3)
    assert told(leaves) == ["Aaa", "Aab", "Aac"]
    assert [leaf.branch_of for leaf in leaves] == [None, (0, 1), (0, 1)]


async def test_an_episode_that_ends_before_it_forks_stands_for_all_its_leaves(grow, diary):
    """None is drawn anew, since those would end early only as often as the policy does."""

    def script(request):
        return [ord(".")] if request.name.startswith(("t/0", "t/6")) else letters(request)

    env_class = diary()
    leaves = await grow(env_class, attempts=range(8), turns=(0, 1), script=script)
    assert told(leaves) == [".", ".", ".", ".", "Eee", "Eef", "E.", "E."]
    assert [leaf.branch_of for leaf in leaves] == [None, (0, 0), (0, 0), (0, 0), None, (4, 1), (4, 0), (6, 1)]
    assert [leaf.num_sampled for leaf in leaves] == [1, 0, 0, 0, 3, 1, 1, 0]
    assert [leaf.reward for leaf in leaves] == [1, 1, 1, 1, 6, 6, 3, 3]
    assert Counter(env_class.log)["reset"] == 2


async def test_of_a_tree_that_is_not_whole_each_attempt_is_by_itself(grow, diary):
    leaves = await grow(diary(), attempts=(5, 3, 1, 2))
    assert told(leaves) == ["Bbb", "Ccc", "Cdd", "Fff"]
    assert [(leaf.attempt, leaf.branch_of) for leaf in leaves] == [(1, None), (2, None), (3, (2, 0)), (5, None)]


async def test_seeds_differ_between_leaves_and_repeat_between_runs(grow, diary):
    async def run():
        leaves = await grow(diary(), attempts=(0, 1, 2, 3), script=None, seed_for=stable_seed)
        return texts(leaves), sorted(request.sampling.seed for request in grow.engine.requests)

    (first, seeds), (again, _) = await run(), await run()
    assert first == again
    assert len(set(first)) == 4
    assert len(set(seeds)) == len(seeds)


def sandbox_is_down(what):
    if what.startswith("fork"):
        raise SandboxError("no jail is left")


async def test_a_fork_that_fails_fails_its_leaves_alone_which_are_then_run_as_whole_episodes(grow, diary):
    env_class = diary(sandbox_is_down)
    leaves = await grow(env_class, attempts=(0, 1, 2), factor=3)
    assert told(leaves) == ["Aaa", "Bbb", "Ccc"]
    assert [leaf.branch_of for leaf in leaves] == [None] * 3
    assert [[f.kind for f in leaf.earlier_failures] for leaf in leaves] == [[], [FailureKind.ENV], [FailureKind.ENV]]
    assert "SandboxError: no jail is left" in leaves[1].earlier_failures[0].message
    assert leaves[1].earlier_failures[0].turn == 0


async def test_without_retries_such_leaves_are_typed_failures(grow, diary):
    leaves = await grow(diary(sandbox_is_down), attempts=range(4), turns=(0, 1), max_retries=0)
    assert [leaf.failure and leaf.failure.kind for leaf in leaves] == [None, *[FailureKind.ENV] * 3]
    assert told(leaves) == ["Aaa", "Aa", "A", "A"]  # what each was before its fork, to look at


async def test_what_a_program_keeps_from_being_copied_stands_for_its_leaves(grow, diary):
    """It counts as much as what can be copied: a program that holds up forks is neither rewarded nor played down."""

    def refuse(what):
        if what == "fork A":
            raise ProgramError("a thread holds it up")

    env_class = diary(refuse)
    leaves = await grow(env_class, attempts=range(4), max_retries=3)
    assert told(leaves) == ["Aaa", "Aaa", "Ccc", "Cdd"]
    assert all(leaf.is_valid and leaf.earlier_failures == () for leaf in leaves)
    assert [leaf.reward for leaf in leaves] == [6.0] * 4
    assert [leaf.branch_of for leaf in leaves] == [None, (0, 2), None, (2, 0)]
    assert [leaf.num_sampled for leaf in leaves] == [3, 0, 3, 2]


async def test_what_is_refused_after_some_twins_came_stays_with_the_parent(grow, diary):
    """Three ways, twice: the second twin of the first fork is refused, so that its three leaves are the parent's."""
    forks = iter(["came", "refused"])

    def refuse(what):
        if what == "fork A" and next(forks) == "refused":
            raise ProgramError("a thread holds it up")

    leaves = await grow(diary(refuse), attempts=range(9), turns=(0, 1), factor=3)
    assert told(leaves) == ["Aaa", "Aaa", "Aac", "Add", "Ade", "Adf", "Aac", "Aah", "Aah"]
    assert all(leaf.is_valid for leaf in leaves)


async def test_who_cannot_fork_just_then_stands_for_its_leaves_until_it_can(grow, diary):
    env_class = diary()
    env_class.can_fork = property(lambda self: len(self.told) > 1)
    leaves = await grow(env_class, attempts=range(9), turns=(0, 1), factor=3)
    assert told(leaves) == ["Aaa"] * 3 + ["Aad"] * 3 + ["Aag"] * 3
    assert [leaf.branch_of for leaf in leaves] == [None, (0, 2), (0, 2), (0, 1), (3, 2), (3, 2), (0, 1), (6, 2), (6, 2)]
    assert all(leaf.is_valid and not leaf.earlier_failures for leaf in leaves)
    assert Counter(env_class.log)["fork Aa"] == 2


async def test_a_trunk_that_fails_later_leaves_its_twins_alone(grow, diary):
    """Begun again it shares nothing with them; they are still of one tree with each other."""
    fails = ["step Aa"]

    def hit(what):
        if what in fails:
            fails.remove(what)
            raise OSError("down")

    leaves = await grow(diary(hit), attempts=(0, 1, 2), factor=3)
    assert told(leaves) == ["Aaa", "Abb", "Acc"]
    assert [leaf.branch_of for leaf in leaves] == [None, None, (1, 0)]
    assert [len(leaf.earlier_failures) for leaf in leaves] == [1, 0, 0]
    assert leaves[0].num_sampled == 3


async def test_a_trunk_that_fails_before_its_fork_fails_for_all_its_leaves(grow, diary):
    def hit(what):
        if what == "step A":
            raise OSError("down")

    leaves = await grow(diary(hit), attempts=(0, 1), max_retries=1)
    assert told(leaves) == ["A", "Bbb"]
    assert leaves[0].failure.kind is FailureKind.ENV
    assert [len(leaf.earlier_failures) for leaf in leaves] == [1, 1]
    assert [leaf.branch_of for leaf in leaves] == [None, None]


async def test_a_dead_engine_returns_its_attempts_at_once(grow, diary):
    """They are moved to another engine, so nothing that is kept may name them as its origin."""

    def script(request):
        if request.name == "t/0/2":
            raise EngineDeadError("gone")
        return letters(request)

    engine = ScriptedEngine(script)
    leaves = await grow(diary(), script=engine, max_retries=3)
    assert leaves[0].failure.kind is FailureKind.ENGINE_DEAD
    assert leaves[0].earlier_failures == ()
    assert all(leaf.branch_of is None for leaf in leaves if leaf.is_valid)


@pytest.mark.parametrize("stage", ["step A", "fork A", "step Aa", "step Ab", "t/0/0", "t/1/1"])
async def test_cancelled_anywhere_it_closes_all(multi_turn, diary, stage):
    reached = asyncio.Event()

    async def hang():
        reached.set()
        await asyncio.Event().wait()

    def script(request):
        if request.name == stage:
            reached.set()
            return Reply([65], [-1.0], latency_s=3600.0)
        return letters(request)

    env_class = diary(lambda what: hang() if what == stage else None)
    executor = multi_turn(env_class)
    engine = nullcontext(ScriptedEngine(script))
    work = run_attempts(executor, TASK, (0, 1, 2), lambda attempt: engine, SAMPLING, branching=Branching((0,), 3))
    task = asyncio.create_task(work)
    async with asyncio.timeout(60):
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    stats = executor.env_pool.stats()
    assert stats.counts.num_envs == 0
    assert {(f.running, f.waiting) for f in stats.families.values()} == {(0, 0)}
    num_made = sum(line == "reset" or line.startswith("fork") for line in env_class.log)
    num_closed = sum(line.startswith("close") for line in env_class.log)
    assert num_closed == num_made - (stage == "fork A")  # which was never made


@pytest.mark.parametrize("turns", [(), (0,)])
async def test_cancelled_in_any_await_it_closes_all(multi_turn, diary, turns):
    """The loop takes one step more each time before the cancellation, until the attempts are through."""

    class Counted(diary(lambda what: asyncio.sleep(0))):
        def __init__(self):
            super().__init__()
            self.log.append("made")

    executor = multi_turn(Counted)
    for num_steps in itertools.count():
        engine = ScriptedEngine(letters)
        work = run_attempts(
            executor, TASK, (0, 1), lambda _, e=engine: nullcontext(e), SAMPLING, branching=Branching(turns)
        )
        task = asyncio.create_task(work)
        for _ in range(num_steps):
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert executor.env_pool.stats().counts.num_envs == 0
        assert engine.num_running == 0
        counts = Counter(line.split()[0] for line in Counted.log)
        assert counts["made"] == counts["close"]
    assert num_steps > 8  # each turn waits for the engine and for the environment
    assert [leaf.is_valid for leaf in task.result()] == [True, True]


async def test_a_bug_says_itself_what_it_is(multi_turn, diary, monkeypatch):
    def broken(self):
        raise KeyError("a bug")

    def seat_of(attempt):
        return nullcontext(ScriptedEngine(letters))

    monkeypatch.setattr("turngym.executors.episodes.episode.Episode.finish", broken)
    with pytest.raises(KeyError, match="a bug"):
        await run_attempts(multi_turn(diary()), TASK, (0, 1), seat_of, SAMPLING, branching=Branching((0,)))


@pytest.mark.parametrize("turns", [(), (0,)])
async def test_a_bug_in_one_attempt_leaves_no_other_behind(multi_turn, diary, monkeypatch, turns):
    """The others are in the midst of a step, which would never end; their environments are closed on return."""
    hanging: list[str] = []
    all_hang = asyncio.Event()

    async def hang(what):
        hanging.append(what)
        if len(hanging) == 2:
            all_hang.set()
        await asyncio.Event().wait()

    def broken(self):
        raise KeyError("a bug")

    class Waits(ScriptedEngine):
        async def generate(self, prompt_ids, sampling, images=None, request=""):
            if request.startswith(("t/0/", "t/1/")):
                await all_hang.wait()
                return await super().generate(prompt_ids, sampling, images, "t/13/1")
            return await super().generate(prompt_ids, sampling, images, request)

    monkeypatch.setattr("turngym.executors.episodes.episode.Episode.finish", broken)
    env_class = diary(lambda what: hang(what) if what in ("step C", "step D", "step E") else None)
    executor = multi_turn(env_class)
    engine = Waits(lambda request: [ord(".")] if "/13/" in request.name else letters(request))
    attempts = (0, 1, 2, 3, 4, 5) if turns else (0, 2, 3)
    with pytest.raises(KeyError, match="a bug"):
        async with asyncio.timeout(60):
            await run_attempts(
                executor, TASK, attempts, lambda _: nullcontext(engine), SAMPLING, branching=Branching(turns)
            )
    assert len(hanging) == 2
    assert executor.env_pool.stats().counts.num_envs == 0
    assert engine.num_running == 0


class Tally(Env):
    """A synchronous environment that forks."""

    closed: list[str] = []

    def __init__(self):
        self.told = ""

    def reset(self, *, seed=None, options=None):
        return "go", {}

    def step(self, action):
        self.told += action
        return self.told, 1.0, len(self.told) == 3, False, {}

    @property
    def can_fork(self):
        return True

    def fork(self):
        twin = Tally()
        twin.told = self.told
        return twin

    def close(self):
        self.closed.append(self.told)


async def test_synchronous_environments_fork_in_threads(grow):
    leaves = await grow(Tally, attempts=(0, 1))
    assert told(leaves) == ["Aaa", "Abb"]
    assert sorted(Tally.closed) == ["Aaa", "Abb"]


@pytest.mark.parametrize(("turns", "factor"), [((1, 1), 2), ((2, 1), 2), ((-1,), 2), ((0,), 1)])
def test_branches_that_cannot_be(turns, factor):
    with pytest.raises(ConfigError, match=r"rise from 0|2 or more"):
        Branching(turns, factor)
