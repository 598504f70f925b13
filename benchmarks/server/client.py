"""Many conversations at once over HTTP, in a process of their own: what a server is loaded with.

Reads one `Load` as JSON from standard input and writes one `Served` as JSON. Each conversation sends its whole history
at every turn, as clients of OpenAI's API do, over one connection that is kept.
"""

import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from dataclasses import dataclass

import httpx

LINE = "why how many does the third word of this line name a colour a town or an animal and what is next"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Look up the {name} of a place, in words that take a line.",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["place"],
            },
        },
    }
    for name in ("weather", "time", "population", "history")
]


@dataclass(frozen=True)
class Load:
    """What a server is asked.

    Attributes:
        urls: One for each conversation, up to and with `/v1`.
        key: What the server wants to know.
        model: What it calls the model.
        turns: Of each conversation.
        num_words: Of each of the user's messages.
        max_tokens: Of each answer.
        has_tools: Whether tools are described, and calls answered.
        streams: Whether answers are asked for as streams.
        has_logprobs: Whether the logprobs of all tokens are asked for.
        tag: Stands in every conversation, so that an engine finds nothing of an earlier load in its cache.
    """

    urls: list[str]
    key: str
    model: str
    turns: int
    num_words: int
    max_tokens: int
    has_tools: bool = False
    streams: bool = False
    has_logprobs: bool = False
    tag: str = ""


@dataclass(frozen=True)
class Served:
    """What came of it.

    Attributes:
        wall_s: From the first request to the last answer.
        client_cpu_s: Of the client's own processor time.
        latencies_s: Of each answer.
        first_s: Of each answer, until something of it was there; the head alone does not count.
        num_tokens: Sampled, as the server says.
    """

    wall_s: float
    client_cpu_s: float
    latencies_s: list[float]
    first_s: list[float]
    num_tokens: int


def played(load: Load, timeout_s: float = 600.0) -> Served:
    """Put the load on a server from another process."""
    command = [sys.executable, __file__]
    given = json.dumps(dataclasses.asdict(load))
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=timeout_s)
    if done.returncode:
        raise RuntimeError(f"the client failed: {done.stderr[-2000:]}")
    return Served(**json.loads(done.stdout))


class Conversation:
    """One conversation as a client keeps it."""

    def __init__(self, http: httpx.AsyncClient, url: str, number: int, load: Load, served: Served) -> None:
        self._http = http
        self._url = f"{url}/chat/completions"
        self._number = number
        self._load = load
        self._served = served
        said = f"{load.tag} You are number {number}. {self._words(30)}"
        self._history: list[dict] = [{"role": "system", "content": said}]

    async def play(self) -> int:
        """Take all turns; return how many tokens were sampled."""
        num_tokens = 0
        for turn in range(self._load.turns):
            if self._history[-1]["role"] != "tool":
                self._history.append({"role": "user", "content": f"{turn}: {self._words(self._load.num_words)}"})
            body = {"model": self._load.model, "messages": self._history, "max_tokens": self._load.max_tokens}
            body |= {"tools": TOOLS} if self._load.has_tools else {}
            body |= {"logprobs": True} if self._load.has_logprobs else {}
            ask = self._streamed if self._load.streams else self._whole
            message, tokens = await ask(body)
            num_tokens += tokens
            self._history.append(message)
            for call in message.get("tool_calls") or ():
                said = self._words(self._load.num_words)
                self._history.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        return num_tokens

    async def _whole(self, body: dict) -> tuple[dict, int]:
        began = time.perf_counter()
        response = await self._http.post(self._url, json=body)
        self._took(began, began)
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {response.text[:500]}")
        answer = response.json()
        return answer["choices"][0]["message"], answer["usage"]["completion_tokens"]

    async def _streamed(self, body: dict) -> tuple[dict, int]:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        began, first, tokens = time.perf_counter(), None, 0
        message: dict = {"role": "assistant", "content": ""}
        async with self._http.stream("POST", self._url, json=body) as response:
            if response.status_code != 200:
                raise RuntimeError(f"{response.status_code}: {(await response.aread())[:500]!r}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line[6:])
                tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
                for choice in chunk["choices"]:
                    _join(message, choice["delta"])
                    first = first or (time.perf_counter() if any(choice["delta"].values()) else None)
        self._took(began, first or began)
        return message, tokens

    def _took(self, began: float, first: float) -> None:
        self._served.latencies_s.append(time.perf_counter() - began)
        self._served.first_s.append(first - began)

    def _words(self, number: int) -> str:
        start = 7 * self._number + 3 * len(getattr(self, "_history", ()))
        words = LINE.split()
        return " ".join(words[(start + place) % len(words)] for place in range(number))


def _join(message: dict, delta: dict) -> None:
    message["content"] += delta.get("content") or ""
    for part in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
        for key in ("name", "arguments"):
            calls[-1]["function"][key] += part["function"].get(key) or ""


async def play(load: Load) -> Served:
    """Hold all conversations at once."""
    served = Served(0.0, 0.0, [], [], 0)
    headers = {"authorization": f"Bearer {load.key}"}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(headers=headers, limits=limits, timeout=600, verify=False) as http:
        began, cpu = time.perf_counter(), time.process_time()
        talks = [Conversation(http, url, number, load, served) for number, url in enumerate(load.urls)]
        num_tokens = await asyncio.gather(*[talk.play() for talk in talks])
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return dataclasses.replace(served, wall_s=wall_s, client_cpu_s=cpu_s, num_tokens=sum(num_tokens))


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(asyncio.run(play(Load(**json.load(sys.stdin)))))))
