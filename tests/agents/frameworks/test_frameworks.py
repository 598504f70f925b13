"""Each framework as it really is, against the server: the same tokens as the multi-turn executor's, its reward."""

import asyncio
from importlib.util import find_spec
from pathlib import Path

import pytest

from turngym.agents.frameworks import frameworks, register_framework
from turngym.agents.frameworks.factory import resolve_agent
from turngym.agents.frameworks.frameworks import BUILTINS, FRAMEWORKS
from turngym.agents.server.session import Session
from turngym.envs.task import Task
from turngym.errors import ConfigError, MissingPackageError, UnknownNameError

TASK = Task(id="t", prompt="What is 17 + 25?", label="42")
CALL = 'Let me add.\n<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": 25}}\n</tool_call>'
TEXTS = [CALL, "It is 42."]
SCORE = """
def score(task, result):
    return {"reward": float(task.label in str(result)), "extra_logs": {"length": len(str(result))}}
"""
OPENAI_AGENTS = """
import agents

@agents.function_tool
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

def build(model, instructions="Use the tool."):
    return agents.Agent(name="adder", instructions=instructions, tools=[add], model=model)
"""
LANGGRAPH = """
from langchain.agents import create_agent

def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

async def build(model):
    return create_agent(model, [add], system_prompt="Use the tool.")

def score(task, result):
    return float(task.label in result["messages"][-1].content)
"""
AUTOGEN = """
from autogen_agentchat.agents import AssistantAgent

async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

def build(model, task):
    told = f"Use the tool for {task.id}."
    return AssistantAgent("adder", model, tools=[add], system_message=told, max_tool_iterations=5)
"""
SMOLAGENTS = """
from smolagents import CodeAgent, tool

@tool
def add(a: int, b: int) -> int:
    '''Add two numbers.

    Args:
        a: One.
        b: The other.
    '''
    return a + b

def build(model):
    return CodeAgent([add], model, verbosity_level=0)
"""
FIRST = "Thought: I add.\n<code>\nprint(add(17, 25))\n</code>"
LAST = "Thought: done.\n<code>\nfinal_answer('It is 42.')\n</code>"
PACKAGES = {
    "autogen": "autogen_agentchat",
    "langgraph": "langchain_openai",
    "openai-agents": "agents.run_context",
    "smolagents": "smolagents",
}


@pytest.fixture
def tools_seen(monkeypatch) -> list:
    """The tools of each request."""
    seen = []
    chat = Session.chat

    def noting(self, ask, asked=None):
        seen.append(ask.tools)
        return chat(self, ask, asked)

    monkeypatch.setattr(Session, "chat", noting)
    return seen


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def need(framework: str) -> None:
    package = PACKAGES[framework]
    try:
        found = find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    if not found:
        pytest.skip(f"needs the package of turngym[{framework}]")


@pytest.mark.parametrize(
    ("framework", "file", "texts"),
    [
        ("openai-agents", OPENAI_AGENTS + SCORE, TEXTS),
        ("langgraph", LANGGRAPH, TEXTS),
        ("autogen", AUTOGEN + SCORE, TEXTS),
        ("smolagents", SMOLAGENTS + SCORE, [LAST]),
    ],
)
@pytest.mark.slow  # importing them takes seconds
@pytest.mark.usefixtures("outside_the_source")
async def test_a_framework_has_the_tokens_of_the_multi_turn_executor(
    script_of, play, agent_file, check_against_multi_turn, tools_seen, framework, file, texts
):
    """R25: AutoGen's assistant with one tool among them; smolagents' is below."""
    need(framework)
    path = agent_file(file)
    arguments = {"entry": f"{path}:build", "score": f"{path}:score"}
    script = script_of(texts)
    trajectory = await play(script, TASK, f"framework:{framework}", **arguments)
    assert trajectory.failure is None, trajectory.failure
    assert (trajectory.num_turns, trajectory.reward) == (len(texts), 1.0)
    assert all("42" in shown for shown in script.shown()[1:])  # what the tool said
    (sequence,) = trajectory.sequences  # one context, and nothing that was rendered anew
    assert sequence.num_actions == sum(len(text.encode()) + 1 for text in texts)
    await check_against_multi_turn(trajectory, texts, tools=tools_seen[0])


@pytest.mark.parametrize(
    ("framework", "file"),
    [("langgraph", LANGGRAPH), ("autogen", AUTOGEN + SCORE), ("openai-agents", OPENAI_AGENTS + SCORE)],
)
@pytest.mark.slow
@pytest.mark.usefixtures("outside_the_source")
async def test_thoughts_that_get_lost_on_the_way_are_restored_and_counted(script_of, play, agent_file, framework, file):
    """R26: the second answer has seen the first one's thought, which the framework does not send back."""
    need(framework)
    path = agent_file(file)
    texts = [f"<think>\nI add.\n</think>\n\n{CALL}", "It is 42."]
    script = script_of(texts)
    trajectory = await play(script, TASK, f"framework:{framework}", entry=f"{path}:build", score=f"{path}:score")
    assert trajectory.failure is None, trajectory.failure
    assert len(trajectory.sequences) == 1
    assert script.shown()[1].startswith(script.shown()[0] + texts[0])
    logs = {name: count for name, count in trajectory.extra_logs.items() if name.startswith("history/") and count}
    assert logs == {"history/continued": 1, "history/thoughts_dropped": 1}


RESPONSES = """
import agents
from openai import AsyncOpenAI

@agents.function_tool
def weather(city: str) -> str:
    "Look up the weather."
    return "rain"

async def run(task, base_url, api_key, model):
    agents.set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        agent = agents.Agent(name="a", tools=[weather], model=agents.OpenAIResponsesModel(model, client))
        first = await agents.Runner.run(agent, task.prompt, auto_previous_response_id=True)
        last = await agents.Runner.run(agent, "Sure?", previous_response_id=first.last_response_id)
    return float(last.final_output == "Yes.")
"""


@pytest.mark.slow
@pytest.mark.usefixtures("outside_the_source")
async def test_openais_agents_go_on_from_the_id_of_a_response(script_of, play, agent_file):
    """R24: the tool's output is all that is sent with the id, and a question with the next."""
    need("openai-agents")
    texts = ['<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>', "It rains.", "Yes."]
    script = script_of(texts)
    task = Task(id="t", prompt="Weather in Oslo?")
    trajectory = await play(script, task, f"func:{agent_file(RESPONSES)}")
    assert (trajectory.failure, trajectory.reward) == (None, 1.0)
    (sequence,) = trajectory.sequences
    assert sequence.num_actions == sum(len(text) + 1 for text in texts)
    assert "rain" in script.shown()[1]


LITELLM = """
import litellm

async def run(task, base_url, api_key, model):
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    to = {"model": f"hosted_vllm/{model}", "api_base": base_url, "api_key": api_key, "tools": tools}
    history = [{"role": "user", "content": task.prompt}]
    for _ in range(2):
        message = (await litellm.acompletion(messages=history, **to)).choices[0].message
        history.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls or []:
            history.append({"role": "tool", "tool_call_id": call.id, "content": "42"})
    return float("42" in message.content)
"""


@pytest.mark.slow
async def test_what_litellm_makes_of_a_history_is_known(script_of, play, agent_file):
    """R26: by its route for vLLM."""
    if find_spec("litellm") is None:
        pytest.skip("needs the package litellm")
    script = script_of([f"<think>\nI add.\n</think>\n\n{CALL}", "It is 42."])
    trajectory = await play(script, TASK, f"func:{agent_file(LITELLM)}")
    assert (trajectory.failure, trajectory.reward) == (None, 1.0)
    assert len(trajectory.sequences) == 1
    assert trajectory.extra_logs["history/continued"] == 1
    assert sum(count for name, count in trajectory.extra_logs.items() if "branches" in name) == 0


@pytest.mark.slow
async def test_smolagents_rewrites_what_was_answered_and_each_step_is_trained_as_it_was_sampled(
    script_of, play, agent_file
):
    need("smolagents")
    path = agent_file(SMOLAGENTS + SCORE)
    script = script_of([FIRST, LAST])
    trajectory = await play(
        script, TASK, "framework:smolagents", entry=f"{path}:build", score=f"{path}:score", max_concurrency=1
    )
    assert trajectory.failure is None, trajectory.failure
    assert trajectory.reward == 1.0
    assert "Calling tools:" in script.shown()[1]  # nobody sampled this
    for sequence, request, text in zip(trajectory.sequences, script.engine.requests, [FIRST, LAST], strict=True):
        assert sequence.token_ids[: len(request.prompt_ids)].tolist() == request.prompt_ids.tolist()
        assert not sequence.is_action[: len(request.prompt_ids)].any()
        assert sequence.num_actions == len(text) + 1


@pytest.mark.slow
async def test_a_framework_of_ones_own(script_of, play, agent_file):
    @register_framework("plain-httpx")
    async def run(build, task, endpoint):
        import httpx

        async with httpx.AsyncClient(base_url=endpoint.base_url) as client:
            headers = {"authorization": f"Bearer {endpoint.api_key}"}
            ask = build(lambda body: client.post("chat/completions", json=body, headers=headers))
            return await ask(task.prompt)

    path = agent_file("""
def build(post, loud=False):
    async def ask(prompt):
        answer = await post({"messages": [{"role": "user", "content": prompt.upper() if loud else prompt}]})
        return len(answer.json()["choices"][0]["message"]["content"])
    return ask
""")
    script = script_of(["four"])
    trajectory = await play(script, TASK, "framework:plain-httpx", entry=f"{path}:build", loud=True)
    assert trajectory.reward == 4.0
    assert "WHAT IS" in script.shown()[0]


@pytest.mark.slow
async def test_a_framework_of_an_installed_package(script_of, play, agent_file, tmp_path, monkeypatch):
    """Found by its entry point, as pip writes it; another package that takes a known name harms nobody."""
    entry = "[turngym.frameworks]\ntheirs = their_package.runs:run\nlanggraph = their_package.runs:run\n"
    info = {"METADATA": "Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n", "entry_points.txt": entry}
    for name, text in info.items():
        write(tmp_path / "their_package-1.0.dist-info" / name, text)
    write(tmp_path / "their_package" / "__init__.py", "")
    write(
        tmp_path / "their_package" / "runs.py",
        """
def run(build, task, endpoint):
    import httpx
    body = {"messages": [{"role": "user", "content": task.prompt}]}
    answer = httpx.post(f"{endpoint.base_url}/chat/completions", json=body, headers={"x-api-key": endpoint.api_key})
    return build(answer.json()["choices"][0]["message"]["content"])
""",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(FRAMEWORKS, "_entries", {})
    with pytest.warns(UserWarning, match="'langgraph' of their-package is left out"):
        frameworks._register_known()
    assert FRAMEWORKS._entries["langgraph"] == BUILTINS["langgraph"]
    path = agent_file("def build(said): return float(len(said))")
    trajectory = await play(script_of(["four"]), TASK, "framework:theirs", entry=f"{path}:build")
    assert (trajectory.failure, trajectory.reward) == (None, 4.0)
    with pytest.raises(UnknownNameError, match="Did you mean 'theirs'"):
        resolve_agent("framework:their", {"entry": f"{path}:build"})


@pytest.mark.parametrize(
    ("name", "kwargs", "error", "message"),
    [
        ("openai-agent", {"entry": "{file}:build"}, UnknownNameError, "Did you mean 'openai-agents'"),
        ("plain", {}, ConfigError, "--agent_args.entry"),
        ("plain", {"entry": "{file}:buid"}, ConfigError, "Did you mean 'build'"),
        ("plain", {"entry": "{file}:build", "lod": 1}, ConfigError, "Did you mean 'loud'"),
        ("plain", {"entry": "{file}:nothing"}, ConfigError, "build(model)"),
        ("plain", {"entry": "{file}:build", "score": "{file}:scor"}, ConfigError, "has no 'scor'"),
    ],
)
def test_mistakes_show_before_a_run(agent_file, monkeypatch, name, kwargs, error, message):
    monkeypatch.setitem(FRAMEWORKS._entries, "plain", lambda build, task, endpoint: 1.0)
    path = agent_file("def build(model, loud=False): ...\ndef nothing(): ...")
    with pytest.raises(error) as caught:
        resolve_agent(f"framework:{name}", {key: str(value).format(file=path) for key, value in kwargs.items()})
    assert message in str(caught.value)


def test_a_package_that_is_missing_is_named(agent_file, monkeypatch):
    monkeypatch.setitem(FRAMEWORKS._entries, "autogen", BUILTINS["autogen"])
    monkeypatch.setitem(__import__("sys").modules, "autogen_agentchat", None)
    monkeypatch.delitem(__import__("sys").modules, BUILTINS["autogen"].partition(":")[0], raising=False)
    with pytest.raises(MissingPackageError, match=r"pip install 'turngym\[autogen\]'"):
        resolve_agent("framework:autogen", {"entry": f"{agent_file('def build(model): ...')}:build"})


def test_a_prompt_of_parts_is_one_text_where_a_framework_takes_no_messages():
    parts = [{"type": "text", "text": "Add "}, {"type": "text", "text": "them."}]
    user, system = {"role": "user", "content": parts}, {"role": "system", "content": "Be brief."}
    assert frameworks.prompt_text(Task(id="t", prompt=[user])) == "Add them."
    assert frameworks.prompt_text(Task(id="t", prompt=[system, user])) == "system: Be brief.\n\nuser: Add them."
    picture = {"role": "user", "content": [*parts, {"type": "image", "image": "a.png"}]}
    with pytest.raises(ConfigError, match=r"task 't' is wanted as text: .* parts of type image"):
        frameworks.prompt_text(Task(id="t", prompt=[picture]))


async def test_a_framework_that_is_cancelled_ends(agent_file, monkeypatch):
    begun, ended = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def run(build, task, endpoint):
        loop.call_soon_threadsafe(begun.set)
        try:
            await asyncio.Event().wait()
        finally:
            loop.call_soon_threadsafe(ended.set)

    monkeypatch.setitem(FRAMEWORKS._entries, "waits", run)
    agent = resolve_agent("framework:waits", {"entry": f"{agent_file('def build(model): ...')}:build"})()
    call = asyncio.create_task(agent.run(TASK, None))
    async with asyncio.timeout(60):
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await ended.wait()
    agent.close()
