"""How the hardware is shared out, and what more than there is leads to."""

import pytest
import ray

from turngym.envs.base import Env
from turngym.envs.factory import EnvFactory
from turngym.errors import ConfigError
from turngym.executors.engines.vllm import VllmConfig
from turngym.executors.episodes.limits import Limits
from turngym.executors.fleet.rollout_actor import RolloutConfig
from turngym.executors.pools.base import Kept
from turngym.executors.pools.known_states import KnownStates
from turngym.learner.run.placement import Cluster, Hardware, Layout, plan_layout


def plan(num_gpus: int, ranks: int | None = None, engines: int | None = None, gpus_per_engine: int = 1) -> Layout:
    return plan_layout(
        Hardware(num_gpus, 64),
        num_gpus_per_node=ranks,
        num_nodes=1,
        num_engines=engines,
        gpus_per_engine=gpus_per_engine,
    )


def test_without_a_gpu_ranks_and_engines_share_the_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert plan(0) == Layout(1, 1, 0, 0, threads=8, engine_threads=8)
    assert plan(0, ranks=2, engines=4) == Layout(2, 4, 0, 0, threads=4, engine_threads=2)
    assert not plan(0).is_on_gpu


def test_one_gpu_is_shared_by_the_learner_and_one_engine():
    assert plan(1) == Layout(1, 1, 0.5, 0.5, threads=1, engine_threads=1)
    assert plan(1).is_on_gpu


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"num_gpus": 2}, "show the run one of them"),
        ({"num_gpus": 1, "ranks": 2}, "--actor.num_gpus_per_node x --actor.num_nodes is 2"),
        ({"num_gpus": 1, "engines": 2}, "--vllm.num_engines is 2"),
        ({"num_gpus": 1, "gpus_per_engine": 2}, "--vllm.tensor_parallel_size is 2"),
    ],
)
def test_more_than_there_is_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        plan(**words)


def test_what_takes_a_rollout_actors_place_is_made_with_what_its_environments_kept(monkeypatch):
    made = []

    class Remote:
        def options(self, **options):
            return self

        def remote(self, config, **words):
            made.append((words["name"], config.env_states))

    monkeypatch.setattr(ray, "remote", lambda actor: Remote())
    known = KnownStates(lambda line: None)
    config = RolloutConfig(VllmConfig("m", "float32", max_context=8), EnvFactory("env", Env), Limits())
    cluster = Cluster.__new__(Cluster)  # without a Ray of its own
    fleet = cluster.fleet(
        config, plan(0, engines=2), start_timeout_s=1.0, max_restarts=1, say=lambda line: None, env_states=known
    )
    known.learn(1, Kept({"Staircase": [7]}), known.asked())
    fleet._make_actor(1)
    assert made == [("engine 0", {}), ("engine 1", {}), ("engine 1", {"Staircase": [7]})]
