"""The OpenAI Agents SDK: `build(model)` returns an `agents.Agent`; what comes of a run is its `final_output`."""

import inspect
from typing import Any

from ...envs.task import Task
from .base import Endpoint
from .frameworks import Build, package, prompt_messages

_NAME = "openai-agents"
_MAX_TURNS = 1_000_000  # the episode's limits are ours
sdk, openai = package("agents", _NAME), package("openai", _NAME)


async def run(build: Build, task: Task, endpoint: Endpoint) -> Any:
    """Run one episode; nothing of it is sent to OpenAI's traces."""
    async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as client:
        agent = build(sdk.OpenAIChatCompletionsModel(model=endpoint.model, openai_client=client))
        agent = await agent if inspect.isawaitable(agent) else agent
        config = sdk.RunConfig(tracing_disabled=True)
        done = await sdk.Runner.run(agent, prompt_messages(task), run_config=config, max_turns=_MAX_TURNS)
    return done.final_output
