"""LangGraph and LangChain: `build(model)` returns a compiled graph; what comes of a run is its last state."""

import inspect
from typing import Any

from ...envs.task import Task
from .base import Endpoint
from .frameworks import Build, package, prompt_messages

_NAME = "langgraph"
_MAX_STEPS = 1_000_000  # the episode's limits are ours
package("langgraph", _NAME)
langchain_openai, openai = package("langchain_openai", _NAME), package("openai", _NAME)


async def run(build: Build, task: Task, endpoint: Endpoint) -> Any:
    """Run one episode; `build` gets a `ChatOpenAI`."""
    async with openai.DefaultAsyncHttpxClient() as asynchronous:
        with openai.DefaultHttpxClient() as plain:
            model = langchain_openai.ChatOpenAI(
                model=endpoint.model,
                base_url=endpoint.base_url,
                api_key=endpoint.api_key,
                http_client=plain,  # its own would be kept for every session there ever was
                http_async_client=asynchronous,
                use_responses_api=False,
            )
            graph = build(model)
            graph = await graph if inspect.isawaitable(graph) else graph
            return await graph.ainvoke({"messages": prompt_messages(task)}, {"recursion_limit": _MAX_STEPS})
