"""Functions as agents: what they are given, what they bring, and how mistakes show before a run."""

import asyncio

import pytest

from turngym.agents import Sampling
from turngym.agents.frameworks.factory import resolve_agent
from turngym.envs import watched_loops
from turngym.envs.task import Task
from turngym.errors import ConfigError
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.trajectory import FailureKind
from turngym.executors.own_agents.openai_server import AgentEpisodes

TASK = Task(id="t", prompt="How are you?", label="well")
SAMPLING = Sampling(max_tokens=64)
TALK = """
import asyncio, openai
from turngym import Task

def tasks(split):
    return [Task(id=f"{split} {number}", prompt="Go") for number in range(3)]

async def run(task, base_url, api_key, model, questions: int = 2):
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        history = [{"role": "system", "content": "Be brief."}]
        for number in range(questions):
            history.append({"role": "user", "content": f"{task.prompt} {number}"})
            answer = await client.chat.completions.create(model=model, messages=history)
            history.append(answer.choices[0].message)
    return float(task.label in history[-1].content)

def plainly(task, base_url, api_key, **others):
    with openai.OpenAI(base_url=base_url, api_key=api_key) as client:
        said = client.chat.completions.create(model="any", messages=[{"role": "user", "content": task.prompt}])
    return {"reward": len(said.choices[0].message.content), "extra_logs": {"others": len(others)}}

async def blocking(task, base_url, api_key):
    return plainly(task, base_url, api_key)["reward"]

def decorated(task, base_url, api_key):
    return blocking(task, base_url, api_key)

def stuck(task, base_url, api_key):
    raise StopIteration

nothing = 3
"""


@pytest.mark.slow
@pytest.mark.parametrize("template", ["qwen2_5", "qwen3"])
async def test_a_coroutine_has_the_tokens_of_the_multi_turn_executor(
    script_of, play, agent_file, check_against_multi_turn, template
):
    texts = ["<think>\nHm.\n</think>\n\nI am good!", "well", "é ☃ well"]
    trajectory = await play(script_of(texts, template), TASK, f"func:{agent_file(TALK)}", questions=3)
    assert trajectory.reward == 1.0
    await check_against_multi_turn(trajectory, texts, template=template)


@pytest.mark.parametrize("name", ["plainly", "blocking", "decorated"])
async def test_functions_that_block_hold_nothing_up(script_of, play, agent_file, name):
    trajectory = await play(script_of(["four"]), TASK, f"func:{agent_file(TALK)}:{name}", max_concurrency=1)
    assert trajectory.failure is None
    assert trajectory.reward == 4.0
    assert trajectory.extra_logs.get("others") == (1.0 if name == "plainly" else None)


async def test_what_a_thread_raises_is_a_failure(script_of, play, agent_file):
    trajectory = await play(script_of([]), TASK, f"func:{agent_file(TALK)}:stuck")
    assert trajectory.failure.kind == "env"


@pytest.mark.slow
async def test_an_episode_that_blocks_is_named_and_the_others_go_on(script_of, agent_file, monkeypatch):
    monkeypatch.setattr(watched_loops, "BEAT_S", 0.002)
    path = agent_file("""
import threading, httpx
release = threading.Event()

async def run(task, base_url, api_key):
    if task.id == "bad":
        release.wait(600)
    async with httpx.AsyncClient(base_url=base_url, headers={"x-api-key": api_key}) as client:
        body = {"messages": [{"role": "user", "content": task.prompt}]}
        answer = await client.post("chat/completions", json=body, timeout=60)
    return float(task.label in answer.text)
""")
    script = script_of(["well"] * 3)
    user_agent = resolve_agent(f"func:{path}")()
    executor = AgentEpisodes(script.agent, user_agent, Limits(max_seconds=0.1), name="the agent")
    await executor.start()
    try:
        tasks = [Task(id=name, prompt="How are you?", label="well") for name in ("bad", "a", "b")]
        async with asyncio.timeout(60):
            blocked = asyncio.create_task(executor.run(tasks[0], 0, script.engine, SAMPLING))
            await asyncio.sleep(0)
            executor.limits = Limits()  # for the others
            others = await asyncio.gather(*(executor.run(t, 0, script.engine, SAMPLING) for t in tasks[1:]))
            bad = await blocked
    finally:
        user_agent._function.__globals__["release"].set()
        await executor.close()
    assert [trajectory.reward for trajectory in others] == [1.0, 1.0]
    assert bad.failure.kind is FailureKind.ENV_TIMEOUT
    assert f"{path}:7 in run" in bad.failure.message


def test_tasks_of_the_same_file(agent_file):
    factory = resolve_agent(f"func:{agent_file(TALK)}")
    assert [task.id for task in factory.tasks("eval", 0)] == ["eval 0", "eval 1", "eval 2"]
    assert factory.tasks("train", 0, [TASK]) == [TASK]


@pytest.mark.parametrize(
    ("spec", "kwargs", "message"),
    [
        ("func:{file}:runn", {}, "Did you mean 'run'"),
        ("func:{file}:nothing", {}, "wanted a function"),
        ("func:{file}", {"question": 2}, "Did you mean 'questions'"),
        ("func:{file}", {"questions": "two"}, "wants int"),
        ("func:{file}", {"max_concurrency": 0}, "max_concurrency"),
        ("func:{file}:tasks", {}, "wanted run(task, base_url, api_key, model)"),
        ("func:no/such/file.py", {}, "no file"),
        ("func:", {}, "wanted func:"),
        ("fun:x.py", {}, "wanted func:"),
    ],
)
def test_mistakes_show_before_a_run(agent_file, spec, kwargs, message):
    with pytest.raises(ConfigError) as caught:
        resolve_agent(spec.format(file=agent_file(TALK)), kwargs)
    assert message in str(caught.value)


def test_a_file_without_tasks_wants_a_dataset(agent_file):
    factory = resolve_agent(f"func:{agent_file('def run(task, base_url, api_key): return 1.0')}")
    with pytest.raises(ConfigError, match=r"--data\.prompt_dataset, or define tasks"):
        factory.tasks("train", 0)
    factory = resolve_agent(
        f"func:{agent_file('def run(task, base_url, api_key): return 1.0' + chr(10) + 'def tasks(): return 3', 'b.py')}"
    )
    with pytest.raises(ConfigError, match=r"wanted a list of turngym\.Task"):
        factory.tasks("train", 0)
