"""A rollout actor passes on what the run asks of its engine, and lets its episodes sample in lockstep."""

import asyncio
import copy
import shutil
from pathlib import Path

import httpx
import pytest

from turngym.agents.base import Sampling
from turngym.agents.frameworks.factory import resolve_agent
from turngym.agents.tokenizer import load_tokenizer
from turngym.envs.base import Env
from turngym.envs.builtin.mixture import Mixture
from turngym.envs.factory import EnvFactory
from turngym.envs.options import EnvPoolOptions
from turngym.envs.task import Task
from turngym.envs.tools.tool_env import ToolEnv
from turngym.errors import ConfigError
from turngym.executors.engines.base import UpdateMode
from turngym.executors.engines.lockstep import Lockstep
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.engines.vllm import VllmConfig
from turngym.executors.episodes.branching import Branching
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.fleet.failover import Failover, LivingWaves
from turngym.executors.fleet.fleet_engine import Burst
from turngym.executors.fleet.rollout_actor import RolloutActor, RolloutConfig
from turngym.executors.pools.base import Kept


class Recording(ScriptedEngine):
    """Keeps the names of each wave, and the modes of pauses."""

    def __init__(self, **arguments):
        super().__init__(lambda request: [65, 66], **arguments)
        self.waves, self.modes = [], []

    async def submit_wave(self, asks):
        self.waves.append([ask.request for ask in asks])
        return await super().submit_wave(asks)

    async def pause(self, mode=UpdateMode.DRAIN):
        self.modes.append(mode)
        await super().pause(mode)


@pytest.fixture
def actor(tiny_model: Path, echo):
    """Make an actor whose engine is scripted."""

    def make(
        determinism_seed: int | None,
        env_class: type[Env] = echo,
        env: EnvFactory | None = None,
        model: str | None = None,
        **options,
    ):
        config = RolloutConfig(
            VllmConfig(model or str(tiny_model), "float32", max_context=1024),
            env or EnvFactory("echo", env_class),
            Limits(max_turns=2),
            determinism_seed=determinism_seed,
            **options,
        )
        actor = RolloutActor(config, on_gpu=False)
        actor._engine = Recording()
        actor._generator = actor._failover = Failover(actor._engine)
        actor._failover.revived()
        actor._lockstep = actor._lockstep and Lockstep(LivingWaves(actor._engine, actor._failover))
        return actor

    return make


async def test_an_actor_goes_on_from_what_environments_of_another_kept(actor, echo):
    class Staircase(echo):
        level = 0

        @classmethod
        def state_dict(cls):
            return cls.level

        @classmethod
        def load_state_dict(cls, state):
            cls.level = max(cls.level, state)

    second = actor(None, Staircase, env_states={"Staircase": [3, 7]})
    await second.use_own_weights()
    await second.run_group(Task(id="a", prompt="go"), (0,), Sampling(4))
    assert Staircase.level == 7
    assert await second.pool_states(30.0) == Kept({"Staircase": [7]})


async def test_groups_that_come_one_by_one_sample_in_the_same_waves(actor):
    deterministic = actor(7)
    first, second = (
        deterministic.run_group(Task(id=name, prompt="go"), (0, 1), Sampling(4), burst=Burst(1, 4)) for name in "ba"
    )
    first = asyncio.create_task(first)
    await asyncio.sleep(0.05)
    assert deterministic._engine.waves == []
    async with asyncio.timeout(60):
        groups = await asyncio.gather(first, second)
    turn = [["a/0/{}", "a/1/{}", "b/0/{}", "b/1/{}"]]
    assert deterministic._engine.waves == [[name.format(t) for name in names] for t in (0, 1) for names in turn]
    assert all(request.sampling.seed is not None for request in deterministic._engine.requests)
    assert [t.end_reason for group in groups for t in group.trajectories] == ["terminated"] * 4
    await deterministic.close()


async def test_in_lockstep_an_engine_that_was_started_anew_samples_nothing_before_it_has_weights(actor):
    deterministic = actor(7)
    deterministic._failover.lost()  # as `restart` does first
    group = await deterministic.run_group(Task(id="a", prompt="go"), (0,), Sampling(4))
    assert [t.failure.kind for t in group.trajectories] == [FailureKind.ENGINE_DEAD]
    assert deterministic._engine.requests == []
    await deterministic._engine.pause()
    await deterministic._engine.begin_update()
    await deterministic.finish_update(3)
    group = await deterministic.run_group(Task(id="a", prompt="go"), (0,), Sampling(4))
    assert [t.is_valid for t in group.trajectories] == [True]
    await deterministic.close()


async def test_a_failed_attempt_leaves_its_seat(actor, monkeypatch):
    deterministic = actor(7)

    async def breaks(*arguments, **named):
        raise RuntimeError("an attempt broke")

    monkeypatch.setattr("turngym.executors.episodes.tree.retrying", breaks)
    with pytest.raises(RuntimeError, match="an attempt broke"):
        await deterministic.run_group(Task(id="a", prompt="go"), (0, 1), Sampling(4))
    monkeypatch.undo()
    async with asyncio.timeout(60):
        await deterministic.run_group(Task(id="b", prompt="go"), (0,), Sampling(4))
    assert deterministic._engine.waves[0] == ["b/0/0"]
    await deterministic.close()


@pytest.mark.slow
async def test_attempts_that_branch_off_sample_in_lockstep_from_then_on(actor, echo):
    """Nobody waits for one that has not branched off; all wait for one that has, if its fork failed too."""

    class Forks(echo):
        can_fork = True
        num_forks = 0

        def fork(self):
            Forks.num_forks += 1
            if Forks.num_forks == 2:
                raise OSError("down")
            return copy.copy(self)

    deterministic = actor(7, Forks)
    burst = Burst(1, 5)
    async with asyncio.timeout(60):
        groups = await asyncio.gather(
            deterministic.run_group(Task(id="a", prompt="go"), (0, 1, 2), Sampling(4), Branching((0,), 3), burst=burst),
            deterministic.run_group(Task(id="b", prompt="go"), (0, 1), Sampling(4), burst=burst),
        )
    waves = [["a/0/0", "b/0/0", "b/1/0"], ["a/0/1", "a/1/1", "a/2/0", "b/0/1", "b/1/1"], ["a/2/1"]]
    assert deterministic._engine.waves == waves
    assert [t.branch_of for t in groups[0].trajectories] == [None, (0, 0), None]
    assert len({request.sampling.seed for request in deterministic._engine.requests}) == 9
    await deterministic.close()


async def test_without_a_seed_nobody_waits_for_anybody(actor):
    free = actor(None)
    await free.begin_update()
    await free.finish_update(1)  # an engine answers episodes once it has the run's weights
    async with asyncio.timeout(60):
        await free.run_group(Task(id="a", prompt="go"), (0,), Sampling(4), burst=Burst(1, 100))
    assert free._engine.waves == []
    await free.close()


async def test_the_mode_of_an_update_reaches_the_engine(actor):
    rollouts = actor(None)
    await rollouts.begin_update()
    assert await rollouts.finish_update(1) == 1
    await rollouts.begin_update(UpdateMode.KEEP)
    assert await rollouts.finish_update(2) == 2
    assert rollouts._engine.modes == [UpdateMode.DRAIN, UpdateMode.KEEP]
    await rollouts.close()


def members(**classes: type[Env]) -> EnvFactory:
    made = {name: EnvFactory(name, env_class, family=name) for name, env_class in classes.items()}
    return EnvFactory("mixture", Env, members=made)


async def test_each_member_of_a_mixture_has_a_line_of_its_own_before_the_engine(actor, echo):
    """Two members of one class are two families; their environments know their tasks by their own ids."""
    mixed = actor(None, env=members(a=echo, b=echo), env_pool=EnvPoolOptions(weights="a=2"))
    mixed._failover.revived()
    groups = [await mixed.run_group(Task(f"{name}/1", prompt="x"), (0,), Sampling(max_tokens=2)) for name in "ab"]
    assert [group.num_valid for group in groups] == [1, 1]
    assert {name: lane.weight for name, lane in mixed._gate._lanes.items()} == {"a": 2.0, "b": 1.0}
    stats = await mixed.pool_stats()
    assert {name: family.num_calls for name, family in stats.families.items()} == {"a": 4, "b": 4}


async def test_only_members_that_can_fork_do(actor, echo):
    """An attempt at a task of the other member is an episode of its own, and no copy of its sibling."""

    class Forks(echo):
        can_fork = True

        def fork(self):
            return copy.copy(self)

    mixed = actor(None, env=members(forks=Forks, not_=echo))
    mixed._failover.revived()
    groups = [
        await mixed.run_group(Task(f"{name}/1", prompt="x"), (0, 1), Sampling(max_tokens=2), Branching((0,)))
        for name in ("forks", "not_")
    ]
    assert [[t.branch_of for t in group.trajectories] for group in groups] == [[None, (0, 0)], [None, None]]


async def test_an_engine_that_gives_no_logprobs_is_refused_before_any_episode(actor, tmp_path):
    class Mute(ScriptedEngine):
        async def start(self):
            self.is_started = True

    file = tmp_path / "agent.py"
    file.write_text("def run(task, base_url, api_key):\n    return 1.0\n")
    hosting = actor(None, env=resolve_agent(f"func:{file}"))
    hosting._engine = Mute([Reply([65], None), Reply([65], [-0.5])])
    async with asyncio.timeout(60):
        with pytest.raises(ConfigError, match=r"log-probabilities .* this engine gives none"):
            await hosting.start()
        assert hosting._engine.is_started
        await hosting._executor.check(hosting._engine)
        await hosting._executor.close()


@pytest.mark.slow
async def test_a_users_agent_runs_beside_the_engine(actor, tmp_path):
    file = tmp_path / "agent.py"
    file.write_text("""
import httpx

def run(task, base_url, api_key):
    headers = {"authorization": f"Bearer {api_key}"}
    body = {"messages": [{"role": "user", "content": task.prompt}]}
    answer = httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=60)
    return float(len(answer.raise_for_status().json()["choices"]))
""")
    hosting = actor(None, env=resolve_agent(f"func:{file}", {"max_concurrency": 2}))
    async with asyncio.timeout(60):
        await hosting._executor.start()
        await hosting.begin_update()
        await hosting.finish_update(1)
        group = await hosting.run_group(Task(id="a", prompt="go"), (0, 1, 2), Sampling(4))
        assert [t.failure for t in group.trajectories] == [None] * 3
        assert [t.reward for t in group.trajectories] == [1.0] * 3
        assert {v for t in group.trajectories for s in t.sequences for v in s.versions[s.is_action].tolist()} == {1}
        await hosting.pool_stats()
        await hosting.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{hosting._executor.server.url}/health")


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
CALL = '[TOOL_CALLS]add[ARGS]{"a": 2}'
MISFIT = "{# <\uff5ctool▁call▁begin\uff5c> #}{{ tools | tojson if tools }}"  # marks that are no tokens of the model's


@pytest.fixture
def model_with(tiny_model: Path, tmp_path: Path):
    """Return the tiny model with something before its chat template."""

    def make(template: str) -> str:
        folder = tmp_path / "model"
        shutil.copytree(tiny_model, folder)
        tokenizer = load_tokenizer(str(tiny_model))
        tokenizer.chat_template = template + str(tokenizer.chat_template)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return make


ASKS = """
import httpx

def run(task, base_url, api_key):
    headers = {"authorization": f"Bearer {api_key}"}
    body = {"messages": [{"role": "user", "content": task.prompt}], "tools": TOOLS}
    answer = httpx.post(f"{base_url}/chat/completions", json=body, headers=headers, timeout=60)
    (call,) = answer.raise_for_status().json()["choices"][0]["message"]["tool_calls"]
    return float(call["function"]["name"] == "add")
"""


@pytest.mark.parametrize("how", ["named", "guessed"])
async def test_calls_are_read_as_the_run_says_or_the_template(actor, model_with, tmp_path, how):
    """By environments with tools and by the sessions of users' agents."""
    model = model_with("" if how == "named" else "{# [TOOL_CALLS] #}{{ tools | tojson if tools }}")
    options = {"model": model, "tool_parser": "mistral" if how == "named" else None}
    own = actor(None, env=EnvFactory("Adds", ToolEnv, {"tools": [add]}), **options)
    assert [call.name for call in own._executor.agent.reader(TOOLS).read(CALL).calls] == ["add"]
    (tmp_path / "agent.py").write_text(f"TOOLS = {TOOLS!r}\n{ASKS}")
    hosting = actor(None, env=resolve_agent(f"func:{tmp_path / 'agent.py'}"), **options)
    ids = hosting._executor.agent.codec.encode(f"{CALL}<|end|>").tolist()
    hosting._engine = ScriptedEngine([ids])
    hosting._generator = hosting._failover = Failover(hosting._engine)
    async with asyncio.timeout(60):
        await hosting._executor.start()
        await hosting.begin_update()
        await hosting.finish_update(1)
        group = await hosting.run_group(Task(id="a", prompt="go"), (0,), Sampling(len(ids)))
        await hosting.close()
    assert [(t.failure, t.reward) for t in group.trajectories] == [(None, 1.0)]


@pytest.mark.slow  # vLLM's parsers
def test_a_parser_that_does_not_fit_is_refused_at_the_start(actor, echo, model_with, tmp_path, caplog):
    """Be it named, or what the template suggests where tools are known to be there; else the log says so."""
    model, tools = model_with(MISFIT), EnvFactory("Adds", ToolEnv, {"tools": [add]})
    message = r"'deepseek_v31' is not made for this model's tokenizer: .*; give --rollout\.tool_parser .*"
    with pytest.raises(ConfigError, match=message + r"; it was taken since the chat template holds .*tool▁call▁begin"):
        actor(None, env=tools, model=model)
    with pytest.raises(ConfigError, match=message):
        actor(None, model=model, tool_parser="deepseek_v31")
    actor(None, env=tools, model=model, tool_parser="json")
    actor(None, model=model)  # has no tools
    mixture = EnvFactory("Mixture", Mixture, members={"a": EnvFactory("echo", echo), "b": tools})
    with pytest.raises(ConfigError, match=message):
        actor(None, env=mixture, model=model)
    (tmp_path / "agent.py").write_text(f"TOOLS = {TOOLS!r}\n{ASKS}")
    actor(None, env=resolve_agent(f"func:{tmp_path / 'agent.py'}"), model=model)
    assert "that bring tools will be refused: the tool-call parser 'deepseek_v31'" in caplog.text


def add(a: int) -> int:
    return a
