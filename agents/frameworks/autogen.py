"""AutoGen: `build(model)` returns an agent or a team; what comes of a run is its last message."""

import inspect
from typing import Any

from ...envs.task import Task
from .base import Endpoint
from .frameworks import Build, package, prompt_text

_NAME = "autogen"
package("autogen_agentchat", _NAME)
models = package("autogen_ext.models.openai", _NAME)
_ABILITIES = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "family": "unknown",
}


async def run(build: Build, task: Task, endpoint: Endpoint) -> Any:
    """Run one episode; `build` gets an `OpenAIChatCompletionClient`."""
    model = models.OpenAIChatCompletionClient(
        model=endpoint.model, base_url=endpoint.base_url, api_key=endpoint.api_key, model_info=_ABILITIES
    )
    try:
        agent = build(model)
        agent = await agent if inspect.isawaitable(agent) else agent
        done = await agent.run(task=prompt_text(task))
    finally:
        await model.close()
    return done.messages[-1].content
