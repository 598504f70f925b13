"""Programs as agents: what they are told, what they print, and that nothing of them is left."""

import asyncio
import sys
from pathlib import Path

import pytest

from turngym.agents.frameworks.base import Endpoint
from turngym.agents.frameworks.factory import resolve_agent
from turngym.envs.task import Task
from turngym.errors import ConfigError, EnvError

TASK = Task(id="t", prompt="How are you?", label="well", data={"level": 3})
ENDPOINT = Endpoint("http://127.0.0.1:9/s/x/v1", "key")
ASKS = """
import json, os, sys, openai
task = json.loads(os.environ["TURNGYM_TASK"])
assert task == json.load(sys.stdin)
client = openai.OpenAI()
history = []
for number in range(2):
    history.append({"role": "user", "content": task["prompt"] * (number + 1)})
    history.append(client.chat.completions.create(model="m", messages=history).choices[0].message)
print("It said", history[-1].content)
print(json.dumps({"reward": task["data"]["level"], "extra_logs": {"well": float(task["label"] == "well")}}))
"""


def command(path: str) -> str:
    return f"command:'{sys.executable}' {path}"


@pytest.mark.slow
async def test_a_program_has_the_tokens_of_the_multi_turn_executor(
    script_of, play, agent_file, check_against_multi_turn
):
    texts = ["I am good!", "well"]
    trajectory = await play(script_of(texts), TASK, command(agent_file(ASKS)))
    assert trajectory.failure is None
    assert (trajectory.reward, trajectory.extra_logs["well"]) == (3.0, 1.0)
    await check_against_multi_turn(trajectory, texts)


@pytest.mark.parametrize(
    ("program", "value"),
    [
        ("print(0.5)", 0.5),
        ("print(0.5, end='')", 0.5),
        ("print('{}')", {}),
        ("print('[1]')", None),
        ("print('done')", None),
        ("pass", None),
        ("print('x' * 1_000_000); print(1)", 1),
        ("import sys; sys.stdin.close(); print(1)", 1),
        ("import os; print(os.environ['ANTHROPIC_BASE_URL']); print(len(os.environ['OPENAI_API_KEY']))", 3),
    ],
)
async def test_the_last_line_is_read(agent_file, program, value):
    async with asyncio.timeout(60):
        assert await resolve_agent(command(agent_file(program)))().run(TASK, ENDPOINT) == value


async def test_a_long_task_is_only_on_standard_input(agent_file):
    program = "import os, sys; print(len(sys.stdin.read()) if 'TURNGYM_TASK' not in os.environ else 0)"
    async with asyncio.timeout(60):
        size = await resolve_agent(command(agent_file(program)))().run(Task("t", "x" * 300_000), ENDPOINT)
    assert size > 300_000


async def test_a_program_that_fails_says_why_briefly(agent_file):
    program = "import sys; sys.stderr.write('x' * 100_000 + 'the reason'); sys.exit(3)"
    with pytest.raises(EnvError, match="the reason") as caught:
        async with asyncio.timeout(60):
            await resolve_agent(command(agent_file(program)))().run(TASK, ENDPOINT)
    assert "ended with 3" in str(caught.value)
    assert len(str(caught.value)) < 3000


CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, file=open(sys.argv[1] + ".new", "w"), flush=True)
import os; os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(float(sys.argv[2]))
print(1)
"""


async def gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while is_running(pid):
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_what_a_program_left_running_ends_with_it(agent_file, tmp_path):
    async with asyncio.timeout(60):
        agent = resolve_agent(f"{command(agent_file(CHILD))} {tmp_path}/pid 0")()
        assert await agent.run(TASK, ENDPOINT) == 1
    await gone(int((tmp_path / "pid").read_text()))


async def test_a_cancelled_program_ends_with_its_children(agent_file, tmp_path):
    agent = resolve_agent(f"{command(agent_file(CHILD))} {tmp_path}/pid 600")()
    run = asyncio.create_task(agent.run(TASK, ENDPOINT))
    async with asyncio.timeout(60):
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    await gone(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize(
    ("spec", "kwargs", "message"),
    [
        ("command:no_such_program x", {}, "there is no program 'no_such_program'"),
        ("command:python 'x", {}, "quotation"),
        ("command:python x.py", {"questions": 3}, "write them into it"),
    ],
)
def test_mistakes_show_before_a_run(spec, kwargs, message):
    with pytest.raises(ConfigError) as caught:
        resolve_agent(spec, kwargs)
    assert message in str(caught.value)


def test_a_program_brings_no_tasks():
    with pytest.raises(ConfigError, match=r"--eval\.dataset$"):
        resolve_agent("command:python x.py").tasks("eval", 0)
