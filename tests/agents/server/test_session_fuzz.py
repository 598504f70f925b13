"""Whatever clients do to their histories: no token is trained that was not sampled, none is lost, none counts twice."""

import asyncio
import copy
import json

import numpy as np
import pytest

from turngym.agents import ChatAgent, Sampling
from turngym.agents.server.asks import ChatAsk
from turngym.agents.server.canonical import chat_messages
from turngym.agents.server.retries import Asked
from turngym.agents.server.session import Session
from turngym.errors import TemplateError
from turngym.executors.engines.scripted import Reply, Request, ScriptedEngine

TEMPLATES = ["qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "gptoss", "glm4moe", "cohere2", "gemma"]
SAMPLING = Sampling(max_tokens=200)
WORDS = ["Why?", " spaced \n\n text ", "é ☃ 中", "<think>", "</think>", "a" * 30, "", "{}", "<tool_call>"]
CALLS = [
    '{"name": "time", "arguments": {"place": "Oslo", "deep": {"b": 1.0, "a": [1, 2]}}}',
    '{"name": "weather", "arguments": {}}',
    '{"name": "time", "arguments": "{\\"place\\": 3}"}',
    "{broken",
    '{"name": 3}',
]


class Model:
    """Writes thoughts, texts, calls, nonsense; at times without an end of turn."""

    def __init__(self, rng, tokenizer, agent) -> None:
        self.rng, self.tokenizer, self.agent = rng, tokenizer, agent

    def __call__(self, request) -> Reply:
        rng = self.rng
        if rng.random() < 0.15:
            ids = rng.integers(0, len(self.tokenizer), size=int(rng.integers(0, 9))).tolist()
        else:
            ids = [
                token
                for byte in self._text()
                for token in self.tokenizer.encode(byte, add_special_tokens=False)  # a split of its own
            ]
        ends = list(self.agent.end_of_turn_ids) if rng.random() < 0.8 else []
        return Reply([*ids, *ends], [-0.5] * (len(ids) + len(ends)), latency_s=float(rng.random()) * 1e-3)

    def _text(self) -> str:
        rng = self.rng
        text = f"<think>\n{rng.choice(WORDS)}\n</think>\n\n" if rng.random() < 0.5 else ""
        text += str(rng.choice(WORDS))
        for _ in range(int(rng.integers(0, 3))):
            text += f"\n<tool_call>\n{rng.choice(CALLS)}\n</tool_call>"
        return text


class Client:
    """Keeps a history as some framework would, and edits it."""

    def __init__(self, rng, session, tools) -> None:
        self.rng, self.session, self.tools = rng, session, tools
        self.history = [{"role": "user", "content": str(rng.choice(["Hi", "Hello"]))}]
        self.answers = []

    async def play(self, num_turns: int) -> None:
        for _ in range(num_turns):
            n = 2 if self.rng.random() < 0.2 else 1
            tools = self.tools if self.rng.random() < 0.9 else None
            messages = chat_messages(copy.deepcopy(self.history))
            ask = ChatAsk(messages, SAMPLING, tools=tools, n=n, is_parallel=bool(self.rng.random() < 0.8))
            digest = json.dumps([self.history, n]).encode()
            if self.rng.random() < 0.15:
                await self._give_up(ask)
            try:
                answers = await self.session.chat(ask, Asked(digest, is_retry=bool(self.rng.random() < 0.1)))
            except TemplateError:  # as a client is told with 400
                self.history = [{"role": "user", "content": "Anew."}]
                continue
            self.answers += answers
            self._keep(answers[int(self.rng.integers(0, len(answers)))])
            self._edit()

    async def _give_up(self, ask) -> None:
        asked = Asked(self.rng.bytes(16))
        task = asyncio.create_task(self.session.chat(ask, asked))
        await asyncio.sleep(float(self.rng.random()) * 1e-3)
        task.cancel()
        await asyncio.wait([task])
        entry = self.session.requests._by_digest.get(asked.digest)
        if entry is None:
            return
        await asyncio.wait([entry.task])
        if not entry.task.cancelled() and entry.task.exception() is None:
            self.answers += entry.task.result()  # it was quicker, perhaps in the same round of the event loop

    def _keep(self, answer) -> None:
        message = {"role": "assistant", "content": answer.content}
        if answer.thought and self.rng.random() < 0.5:
            message[str(self.rng.choice(["reasoning", "reasoning_content"]))] = answer.thought
        if answer.calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": self._dumped(c.arguments)}}
                for c in answer.calls
            ]
            message["content"] = answer.content if self.rng.random() < 0.5 else None
        self.history.append(message)
        results = [{"role": "tool", "tool_call_id": c.id, "content": "result"} for c in answer.calls]
        self.history += results or [{"role": "user", "content": str(self.rng.choice(WORDS))}]

    def _dumped(self, arguments: str) -> str:
        value = json.loads(arguments)
        keys = list(self.rng.permutation(list(value))) if value else []
        return json.dumps({str(key): value[str(key)] for key in keys}, indent=self.rng.choice([None, 2]))

    def _edit(self) -> None:
        kind, history = self.rng.random(), self.history
        place = int(self.rng.integers(0, len(history)))
        if kind < 0.1:
            history[place]["content"] = f"  {history[place].get('content') or ''}\n"
        elif kind < 0.2:
            history[place]["content"] = "edited"
        elif kind < 0.3:
            history.insert(0, {"role": "system", "content": "And be kind."})
        elif kind < 0.4:
            starts = [at for at, each in enumerate(history) if each["role"] == "user"]
            del history[int(self.rng.choice(starts)) + 1 :]
        elif kind < 0.5:
            history[:] = [{"role": "user", "content": "Summary of all that was said."}]


class Witness:
    """Passes requests on to an engine and notes which completion answered which."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.max_context = engine.max_context
        self.requests = {}

    async def generate(self, prompt_ids, sampling, images=None, request=""):
        prompt_ids = prompt_ids.copy()
        completion = await self.engine.generate(prompt_ids, sampling, images, request)
        self.requests[id(completion)] = Request(prompt_ids, sampling, request, len(self.requests))
        return completion


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", TEMPLATES)
async def test_each_sampled_token_is_an_action_once(name, seed, tokenizer_of, template_text, check_record, tools):
    rng = np.random.default_rng([seed, len(name)])
    tokenizer = tokenizer_of(template_text(name))
    agent = ChatAgent(tokenizer)
    engine = ScriptedEngine(Model(rng, tokenizer, agent), max_context=1 << 16)
    witness = Witness(engine)
    session = Session(agent, witness, SAMPLING)
    clients = [Client(rng, session, tools) for _ in range(4)]
    await asyncio.gather(*[client.play(6) for client in clients])
    assert engine.num_running == 0
    answers = {answer.turn: answer for client in clients for answer in client.answers}
    assert sorted(answers) == list(range(session.num_turns))  # what was given up in time left nothing
    assert len(answers) > 16
    completions = [answers[turn].completion for turn in sorted(answers)]
    record = session.record()
    if name == "qwen2_5":  # others begin new sequences of their own
        assert len(record.sequences) < session.num_turns
    check_record(
        record,
        [witness.requests[id(each)] for each in completions],
        [each.token_ids.tolist() for each in completions],
    )
    assert record.stop_reasons == tuple(each.stop_reason for each in completions)
