"""An engine that says what a test wants, and agents with the chat templates of public models."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
import pytest

from turngym.agents import ChatAgent, Sampling
from turngym.agents.server.server import Server
from turngym.agents.server.session import Session
from turngym.executors.engines.scripted import Reply, ScriptedEngine

from ...tiny_vision import vision_tokenizer

KEY = "secret"
SAMPLING = Sampling(max_tokens=256)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"Look up {name}.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        },
    }
    for name in ("weather", "time")
]


class Talk:
    """A session, its engine and its tokenizer.

    Answers are given as texts, one after the other; an error among them is raised, a `Reply` is given as it is.
    """

    def __init__(self, tokenizer, texts=(), *, tool_parser=None, images=None, marks=(), **options) -> None:
        self.tokenizer = tokenizer
        tokenizer.add_tokens(list(marks), special_tokens=True)
        self.agent = ChatAgent(tokenizer, tool_parser=tool_parser, images=images)
        self.texts = list(texts)
        self.replies: list[list[int]] = []  # in the order of the requests
        self.engine = ScriptedEngine(self._answer, **options)
        self.session = Session(self.agent, self.engine, SAMPLING)

    def _answer(self, request) -> list[int] | Reply:
        text = self.texts.pop(0) if self.texts else f"answer {request.index}"
        if isinstance(text, Exception):
            raise text
        if isinstance(text, Reply):
            self.replies.append(list(text.token_ids))
            return text
        # Byte by byte: not the tokens that the tokenizer would make of this text.
        ids = [token for byte in text for token in self.tokenizer.encode(byte, add_special_tokens=False)]
        self.replies.append([*ids, *self.agent.end_of_turn_ids])
        return self.replies[-1]

    def prompts(self) -> list[str]:
        return [self.tokenizer.decode(request.prompt_ids) for request in self.engine.requests]


def check_record(record, requests, sampled) -> None:
    """Each turn's tokens are an action once, right behind the prompt that the engine got; nothing else is one.

    Args:
        record: Of the session.
        requests: To the engine, in the order of the answers.
        sampled: What it answered, in that order.
    """
    actions = sum(sequence.num_actions for sequence in record.sequences)
    assert actions == sum(len(ids) for ids in sampled)
    for turn, (request, ids) in enumerate(zip(requests, sampled, strict=True)):
        homes = [s for s in record.sequences if (s.is_action & (s.turn == turn)).any()]
        assert len(homes) == (1 if len(ids) else 0), f"turn {turn} is trained {len(homes)} times"
        for home in homes:
            places = np.flatnonzero(home.is_action & (home.turn == turn))
            assert places.tolist() == list(range(places[0], places[0] + len(ids)))
            assert home.token_ids[places].tolist() == list(ids)
            assert home.token_ids[: places[0]].tolist() == request.prompt_ids.tolist()
            assert home.samplings[turn] == request.sampling
    for place, sequence in enumerate(record.sequences):
        assert sequence.samplings
        assert set(sequence.samplings) >= set(sequence.turn[sequence.is_action].tolist())
        if sequence.parent is not None:
            parent, shared = sequence.parent
            assert parent < place
            assert np.array_equal(record.sequences[parent].token_ids[:shared], sequence.token_ids[:shared])


@pytest.fixture
def talk_of(tokenizer_of, template_text) -> Callable[..., Talk]:
    """Make a session by the name of a chat template, or its text: `talk_of("qwen3", ["first answer", ...])`."""

    def make(name, texts=(), **options) -> Talk:
        text = name if "{" in name or name == "vision" else template_text(name)
        return Talk(vision_tokenizer() if name == "vision" else tokenizer_of(text), texts, **options)

    return make


@pytest.fixture(name="check_record")
def _check_record() -> Callable[..., None]:
    return check_record


@pytest.fixture
def tools() -> list[dict]:
    return TOOLS


@pytest.fixture
async def served(talk_of) -> AsyncIterator[Callable[..., Awaitable[tuple[Talk, Server]]]]:
    """Serve a session named "s" of a script: `talk, server = await served("qwen2_5", ["first answer", ...])`."""
    servers = []

    async def start(name="qwen2_5", texts=(), **options):
        talk = talk_of(name, texts, **options)
        server = Server(talk.agent, key=KEY)
        servers.append(server)
        await server.start()
        talk.session = server.open("s", talk.engine, SAMPLING)
        return talk, server

    yield start
    for server in servers:
        async with asyncio.timeout(60):
            await server.stop()
