"""What the page on agents of users' own shows runs, and so does the example."""

import re
import sys
from pathlib import Path

import pytest

from turngym.agents.frameworks.factory import resolve_agent
from turngym.agents.frameworks.frameworks import FRAMEWORKS
from turngym.envs.task import Task
from turngym.registry import import_attribute

from .test_frameworks import CALL, LAST, need

ROOT = Path(__file__).resolve().parents[3]
TASK = Task(id="t", prompt="What is 17 + 25?", label="42")
SNIPPETS = {
    name: code
    for code in re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs" / "frameworks.md").read_text(), re.DOTALL | re.MULTILINE
    )
    for name in re.findall(r"^# (\w+\.py)$", code, re.MULTILINE)
}


def test_each_snippet_is_a_file():
    assert set(SNIPPETS) == {
        "my_agent.py", "my_program.py", "my_framework.py",
        "openai_agents_agent.py", "langgraph_agent.py", "smolagents_agent.py", "autogen_agent.py",
    }  # fmt: skip


@pytest.mark.slow
async def test_the_function(script_of, play, agent_file):
    path = agent_file(SNIPPETS["my_agent.py"])
    script = script_of(["It is 42."])
    assert (await play(script, TASK, f"func:{path}", polite=True)).reward == 1.0
    assert "Please: What" in script.shown()[0]
    assert resolve_agent(f"func:{path}").tasks("eval", 0)[21].label == "42"


@pytest.mark.slow
async def test_the_program(script_of, play, agent_file):
    path = agent_file(SNIPPETS["my_program.py"])
    assert (await play(script_of(["It is 42."]), TASK, f"command:{sys.executable} {path}")).reward == 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("outside_the_source")
@pytest.mark.parametrize("framework", ["openai-agents", "langgraph", "smolagents", "autogen"])
async def test_each_framework(script_of, play, agent_file, framework):
    need(framework)
    path = agent_file(SNIPPETS[f"{framework.replace('-', '_')}_agent.py"])
    script = script_of([LAST] if framework == "smolagents" else [CALL, "It is 42."])
    trajectory = await play(script, TASK, f"framework:{framework}", entry=f"{path}:build", score=f"{path}:score")
    assert trajectory.failure is None, trajectory.failure
    assert trajectory.reward == 1.0


@pytest.mark.slow
async def test_a_framework_of_ones_own(script_of, play, agent_file, monkeypatch):
    monkeypatch.setattr(FRAMEWORKS, "_entries", dict(FRAMEWORKS._entries))
    exec(SNIPPETS["my_framework.py"], {"__name__": "snippet"})
    path = agent_file("""
def build(model):
    async def ask(prompt):
        answer = await model.chat.completions.create(model="any", messages=[{"role": "user", "content": prompt}])
        return len(answer.choices[0].message.content)
    return ask
""")
    assert (await play(script_of(["four"]), TASK, "framework:ask-once", entry=f"{path}:build")).reward == 4.0


@pytest.mark.slow
async def test_the_example(script_of, play, check_against_multi_turn):
    spec = f"func:{ROOT / 'examples' / 'sum_agent.py'}"
    task = resolve_agent(spec).tasks("train", 3)[7]
    texts = [CALL, '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', f" {task.label}"]
    script = script_of(texts)
    trajectory = await play(script, task, spec, max_calls=5)
    assert trajectory.failure is None, trajectory.failure
    assert (trajectory.reward, trajectory.score, trajectory.extra_logs["calls"]) == (1.0, 1.0, 2.0)
    assert "wanted two numbers a and b" in script.shown()[2]
    await check_against_multi_turn(trajectory, texts, tools=[import_attribute(f"{spec.removeprefix('func:')}:ADD")])
