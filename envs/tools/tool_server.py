"""`ToolServer`: a server over HTTP whose operations are tools."""

import asyncio
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import ConfigError, ToolError, ToolServerError
from ..task import Task
from .calls import Schema, schema_name
from .http_calls import HttpAnswer, HttpRequest, ask
from .http_client import ClientUse
from .openapi import HttpTool, tools_of_functions, tools_of_openapi
from .tool_loop import ToolLoop
from .toolbox import AfterCalls, Content, ToolRules, unknown_tool

SESSION_HEADER = "X-Session-Id"
_OPEN_TIMEOUT_S = 30.0


class ToolServer(ToolLoop):
    """A task of a dataset and a server's operations as tools, called over HTTP.

    What the tools are is read once per process, at `url` + `schemas_path`: an OpenAPI 3 document, or a list of OpenAI
    function schemas, which are called by POST of the arguments to `url` + `call_path`. All requests of an episode bear
    an `X-Session-Id` of their own, by which a server can keep a state per episode; cookies are not kept.

    An answer with 4xx goes to the model; a server that is down, 5xx and timeouts fail the episode.

    Args:
        url: Where the server is.
        schemas_path: Where it says what its tools are.
        call_path: Where functions are called that are described by schemas.
        headers: Of every request, such as Authorization.
        remote_url: A Python file with `reward_func`, or HTTP URLs; its queries are the prompt and the final answer.
        max_turns: Answers of the model, the final one included.
        max_calls: Calls that are run of one answer.
        call_timeout_s: Deadline of one call, repetitions included.
        max_output_chars: Shown of what one call gave.
        system_prompt: A system message before the task's prompt.
        timeout_s: Deadline of one call of the reward function.
        after_calls: `keep` leaves what the model writes behind its last call in prompt and loss; by default it is cut.
    """

    def __init__(
        self,
        url: str,
        schemas_path: str = "/openapi.json",
        call_path: str = "/{name}",
        headers: Mapping[str, str] | None = None,
        remote_url: str | None = None,
        max_turns: int = 16,
        max_calls: int = 16,
        call_timeout_s: float = 30.0,
        max_output_chars: int = 4000,
        system_prompt: str | None = None,
        timeout_s: float = 180.0,
        after_calls: AfterCalls = "cut",
    ) -> None:
        rules = ToolRules(max_turns, max_calls, call_timeout_s, max_output_chars, system_prompt, after_calls)
        super().__init__(rules, remote_url, timeout_s)
        self._place = ServerPlace(url, schemas_path, call_path, tuple(sorted((headers or {}).items())))

    def new_toolbox(self) -> "HttpToolbox":
        """Return the tools of an episode, not yet opened."""
        return HttpToolbox(self._place)


@dataclass(frozen=True)
class ServerPlace:
    """Where a server is, and how it is asked.

    Raises:
        ConfigError: It is no URL.
    """

    url: str
    schemas_path: str
    call_path: str
    headers: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"ToolServer wants url as http://... or https://..., got {self.url!r}")
        if "{name}" not in self.call_path:
            raise ConfigError(f"ToolServer wants call_path with {{name}} in it, got {self.call_path!r}")


class HttpToolbox:
    """The tools of one episode; see `ToolServer`."""

    def __init__(self, place: ServerPlace) -> None:
        self._place = place
        self._use = ClientUse()
        self._tools: dict[str, HttpTool] = {}
        self._headers = {**dict(place.headers), SESSION_HEADER: uuid.uuid4().hex}

    @property
    def schemas(self) -> Sequence[Schema]:
        """What the model is told of the tools."""
        return [tool.schema for tool in self._tools.values()]

    async def open(self, task: Task) -> None:
        """Find out what tools there are."""
        self._tools = {schema_name(tool.schema): tool for tool in await _known_tools(self._place, self._use)}

    async def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> Content:
        """Ask the server."""
        if name not in self._tools:
            raise ToolError(unknown_tool(name, self.schemas))
        request = self._tools[name].request(arguments, self._headers)
        answer = await ask(self._use.client, request, timeout_s)
        if answer.status >= 400:
            raise ToolError(f"{answer.status}: {_shown(answer)}")
        return _shown(answer)

    async def close(self) -> None:
        """Let go of the client."""
        await self._use.close()


_KNOWN: dict[ServerPlace, list[HttpTool]] = {}
_LOCKS: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def _known_tools(place: ServerPlace, use: ClientUse) -> list[HttpTool]:
    """Return what the server says its tools are, asked once per process."""
    async with _LOCKS.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        if place not in _KNOWN:
            url = place.url.rstrip("/") + place.schemas_path
            answer = await ask(use.client, HttpRequest("GET", url, headers=dict(place.headers)), _OPEN_TIMEOUT_S)
            _KNOWN[place] = _read_tools(place, url, answer)
        return _KNOWN[place]


def _read_tools(place: ServerPlace, url: str, answer: HttpAnswer) -> list[HttpTool]:
    if answer.status >= 400:
        raise ToolServerError(f"{url} answers {answer.status}; give schemas_path, where the server describes its tools")
    try:
        document = json.loads(answer.body)
    except ValueError as error:
        raise ToolServerError(f"{url} is not JSON ({error}); give schemas_path") from error
    if isinstance(document, dict) and isinstance(document.get("tools"), list):
        document = document["tools"]
    if isinstance(document, list):
        tools = tools_of_functions(document, place.url, place.call_path)
    elif isinstance(document, dict) and str(document.get("openapi", "")).startswith("3"):
        try:
            tools = tools_of_openapi(document, place.url, dict(place.headers))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ToolServerError(f"{url} is no OpenAPI document that can be read: {error!r}") from error
    else:
        raise ToolServerError(f"{url} is neither an OpenAPI 3 document nor a list of function schemas")
    if not tools:
        raise ToolServerError(f"{url} describes no tool that takes JSON")
    return tools


def _shown(answer: HttpAnswer) -> str:
    """Return what the model is shown of an answer."""
    if not answer.body:
        return f"done ({answer.status})"
    if answer.content_type == "application/json" or answer.content_type.startswith("text/") or not answer.content_type:
        return answer.text
    return f"[{answer.content_type}, {len(answer.body)} bytes]"
