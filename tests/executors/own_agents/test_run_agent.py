"""OpenRLHF executors that ask a server: ours answers, with the tokens that their own would have."""

import asyncio
from pathlib import Path

import pytest

from turngym.agents.base import Sampling
from turngym.agents.chat import agent_for
from turngym.envs.openrlhf.env import agent_file
from turngym.envs.task import Task
from turngym.errors import ConfigError
from turngym.executors.engines.scripted import ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.own_agents.agent_file import AgentFileExecutor, make_executor
from turngym.executors.own_agents.executor_choice import executor_of
from turngym.executors.own_agents.openai_server import AgentEpisodes
from turngym.executors.traces.options import ReplayOptions
from turngym.executors.traces.run_settings import environment

pytestmark = pytest.mark.usefixtures("without_openrlhf")

FILE = Path(__file__).parents[2] / "envs" / "openrlhf" / "files" / "openai_server.py"
SAMPLING = Sampling(max_tokens=20)
ARRAYS = ("token_ids", "is_action", "logprobs", "versions", "turn")


@pytest.fixture
def engine(saying):
    return lambda *texts: saying(*(f"{text}<|end|>" for text in texts), max_context=600)


async def served(file: Path, tokenizer, pool, engine, *, prompt="1+6=", attempts=1):
    env = agent_file(str(file), {"sampling": {"max_tokens": 20, "temperature": 1.0, "top_p": 1.0}})
    executor = executor_of(env, agent_for(tokenizer), pool, Limits(max_context=600), tokenizer)
    assert isinstance(executor, AgentEpisodes)
    await executor.start()
    try:
        async with asyncio.timeout(60):
            tasks = [executor.run(Task("t", prompt=prompt, label="7"), n, engine, SAMPLING) for n in range(attempts)]
            return await asyncio.gather(*tasks)
    finally:
        await executor.close()


async def test_our_server_and_a_files_own_give_the_same_arrays(tokenizer, pool, engine):
    env = agent_file(str(FILE), {})
    own = make_executor(agent_for(tokenizer), env, pool, Limits(max_context=600), tokenizer)
    assert isinstance(own, AgentFileExecutor)
    async with asyncio.timeout(60):
        wanted = await own.run(Task("t", prompt="1+6=", label="7"), 0, engine("8?", "7!"), SAMPLING)
    (ours,) = await served(FILE, tokenizer, pool, engine("8?", "7!"))
    assert (ours.failure, wanted.failure) == (None, None)
    (one,), (other,) = ours.sequences, wanted.sequences
    for array in ARRAYS:
        assert getattr(one, array).tobytes() == getattr(other, array).tobytes(), array
    assert one.samplings == other.samplings
    assert (ours.reward, ours.score, ours.extra_logs["turns"]) == (wanted.reward, wanted.score, 2.0) == (1.0, 0.5, 2.0)
    assert ours.rewards_per_turn.tolist() == wanted.rewards_per_turn.tolist()
    assert ours.turn_ends == wanted.turn_ends


@pytest.mark.slow
async def test_episodes_beside_each_other_do_not_mix(tokenizer, pool):
    def answer(request):
        return tokenizer.encode(f"{len(request.prompt_ids)}<|end|>")

    engine = ScriptedEngine(answer, max_context=600, token_latency_s=0.001)
    trajectories = await served(FILE, tokenizer, pool, engine, attempts=16)
    assert [t.failure for t in trajectories] == [None] * 16
    assert [len(t.sequences) for t in trajectories] == [1] * 16
    assert {t.num_turns for t in trajectories} == {2}


@pytest.mark.parametrize(
    ("change", "prompt", "kind", "message"),
    [
        (("return {", "return 7 or {"), "a", FailureKind.REWARD, "wanted a dict with a 'reward'"),
        (('"reward": float', '"rewards": float'), "a", FailureKind.REWARD, "wanted a dict with a 'reward'"),
        (("history, said =", "raise OSError('broken'); history, said ="), "a", FailureKind.ENV, "broken"),
        (("", ""), [{"role": "user", "content": "a"}], FailureKind.ENV, "--data.apply_chat_template"),
    ],
)
async def test_what_goes_wrong_fails_its_attempt(tokenizer, pool, engine, tmp_path, change, prompt, kind, message):
    (tmp_path / "agent_func.py").write_text(FILE.read_text().replace(*change))
    (trajectory,) = await served(tmp_path / "agent_func.py", tokenizer, pool, engine("8?", "7!"), prompt=prompt)
    assert trajectory.failure is not None
    assert trajectory.failure.kind is kind
    assert message in trajectory.failure.message


def test_it_cannot_be_replayed():
    with pytest.raises(ConfigError, match="cannot be replayed"):
        environment({"agent": f"func:{FILE}"}, ReplayOptions())
