"""smolagents: `build(model)` returns an agent of it; what comes of a run is its answer."""

from typing import Any

from ...envs.task import Task
from .base import Endpoint
from .frameworks import Build, package, prompt_text

_NAME = "smolagents"
smolagents = package("smolagents", _NAME)
openai = package("openai", _NAME)


def run(build: Build, task: Task, endpoint: Endpoint) -> Any:
    """Run one episode, in a thread."""
    with openai.DefaultHttpxClient() as client:
        model = smolagents.OpenAIModel(
            model_id=endpoint.model,
            api_base=endpoint.base_url,
            api_key=endpoint.api_key,
            client_kwargs={"http_client": client},
        )
        return build(model).run(prompt_text(task))
