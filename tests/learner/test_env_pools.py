"""What environments keep is remembered engine by engine, whatever becomes of the engines."""

import pickle

import pytest

from turngym.errors import CheckpointError, DeadlineError
from turngym.executors.fleet.fleet_engine import EngineRef, EngineState, Status
from turngym.executors.pools.base import HostCounts, Kept
from turngym.executors.pools.known_states import KnownStates
from turngym.executors.pools.stats import PoolStats
from turngym.learner import env_pools
from turngym.learner.env_pools import STATES, EnvPools


class Fleet:
    """Engines that answer with what stands in `answers`, and remember what they are given and how long they had."""

    def __init__(self, answers):
        self.answers, self.given, self.timeouts = answers, {}, []
        self.meanwhile = lambda: None

    @property
    def started(self):
        return [EngineRef(index, 0) for index in self.answers]

    def ask(self, method, each_s=0.0, *, timeout_s):
        if method == "pool_stats":
            return self.answers
        assert method == "pool_states"
        assert timeout_s == each_s + env_pools.GRACE_S
        self.timeouts.append(each_s)
        answers = dict(self.answers)
        self.meanwhile()
        return answers

    def call(self, engines, method, part, *, timeout_s, what):
        assert method == "load_pool_states"
        self.given |= {engine.index: part for engine in engines}


@pytest.fixture
def lines():
    return []


@pytest.fixture
def make(lines):
    def made(answers, keeps_state=True):
        fleet, known = Fleet(answers), KnownStates(lines.append)
        for engine in answers:
            assert known.for_new_actor(engine) == {}
        return fleet, known, EnvPools(fleet, known, 60.0, lines.append, keeps_state=keeps_state)

    return made


def level(number):
    return Kept({"Staircase": [{"level": number}]})


def written(pools, folder):
    pools.write(folder)
    return [state["level"] for state in pickle.loads((folder / STATES).read_bytes()).get("Staircase", [])]


def test_the_last_known_state_stays_for_engines_that_do_not_answer_and_they_are_named(make, lines, tmp_path):
    fleet, _, pools = make({0: level(5), 1: level(9)})
    assert written(pools, tmp_path) == [5, 9]
    fleet.answers = {0: level(6), 1: DeadlineError("its answer took longer than its deadline")}
    assert written(pools, tmp_path) == [6, 9]
    fleet.answers = {0: Kept(level(6).states, ("what Staircase keeps could not be had: it raised",))}  # 1 is gone
    assert written(pools, tmp_path) == [6, 9]
    assert [line.partition(" keeps")[0] for line in lines] == [
        "WARNING: engine 1: what Staircase",
        "WARNING: engine 0: what Staircase",
    ]
    assert "took longer than its deadline" in lines[0]


def test_what_takes_an_actors_place_is_made_with_its_state(make, lines, tmp_path):
    fleet, known, pools = make({0: level(5), 1: level(9)})
    pools.gather()
    assert known.for_new_actor(1) == level(9).states
    assert lines == ["engine 1: what Staircase keeps goes on from the last checkpoint; what came after is lost"]
    fleet.answers = {0: level(5), 1: level(10)}
    assert written(pools, tmp_path) == [5, 10]


def test_an_answer_of_an_actor_that_was_replaced_meanwhile_does_not_count(make, tmp_path):
    """Else the checkpoint would hold what the actor in its place never had."""
    fleet, known, pools = make({0: level(5)})
    pools.gather()
    fleet.answers, fleet.meanwhile = {0: level(6)}, lambda: known.for_new_actor(0)
    assert written(pools, tmp_path) == [5]
    fleet.meanwhile = lambda: None
    assert written(pools, tmp_path) == [6]


def test_a_resumed_runs_states_are_dealt_out_and_known_before_anybody_is_asked(make, tmp_path):
    (tmp_path / STATES).write_bytes(pickle.dumps({"Staircase": [{"level": number} for number in (1, 2, 3)]}))
    fleet, known, pools = make({0: Kept({}), 1: Kept({})}, keeps_state=False)
    pools.load(tmp_path)
    assert fleet.given == {0: {"Staircase": [{"level": 1}, {"level": 3}]}, 1: {"Staircase": [{"level": 2}]}}
    assert known.for_new_actor(0) == fleet.given[0]
    assert written(pools, tmp_path) == [1, 3, 2]  # of a class that has lost its methods, too
    (tmp_path / STATES).write_bytes(b"cut")
    with pytest.raises(CheckpointError, match="holds the state of environments"):
        pools.load(tmp_path)


def test_metrics_are_those_of_the_pools_that_answer(make):
    """A question for numbers is no reason to end an engine, or a run."""
    stats = PoolStats({}, HostCounts(), num_close_failures=2)
    fleet, _, pools = make({0: stats, 1: DeadlineError("its answer took longer than its deadline"), 2: stats})
    assert pools.metrics()["env_pool/num_close_failures"] == 4
    fleet.answers = {0: DeadlineError("its answer took longer than its deadline")}
    assert pools.metrics() == {}


def test_where_nothing_is_kept_nobody_is_asked(make, tmp_path):
    fleet, _, pools = make({0: level(5)}, keeps_state=False)
    assert written(pools, tmp_path) == []
    pools.gather_last()
    assert fleet.timeouts == []


def test_a_run_that_stops_asks_for_a_short_time_and_never_again(make, tmp_path):
    fleet, _, pools = make({0: level(5)})
    pools.gather_last()
    fleet.answers = {0: DeadlineError("the engines have ended")}
    assert written(pools, tmp_path) == [5]
    assert fleet.timeouts == [5.0]


@pytest.mark.parametrize(
    ("status", "has_process", "hosts"),
    [
        (Status.LIVE, True, True),
        (Status.LIVE, False, True),  # it was replaced once
        (Status.BARE, False, True),
        (Status.STARTING, True, True),  # anew in its actor, whose environments live
        (Status.STARTING, False, False),  # in an actor that has had no episode
        (Status.DEAD, True, True),
        (Status.DEAD, False, False),
        (Status.GONE, True, False),
    ],
)
def test_who_hosts_environments(status, has_process, hosts):
    assert EngineState(0, None, status, has_process=has_process).hosts_envs == hosts
