"""One conversation with a tool through each API of the real application: the arrays of the multi-turn executor."""

import asyncio
import json

import httpx
import pytest

from turngym.agents import Sampling
from turngym.agents.server.app import server_app
from turngym.agents.server.session import Session
from turngym.envs.task import Task
from turngym.executors.engines.scripted import ScriptedEngine

from ..frameworks.conftest import ARRAYS, Script, replayed

KEY = "secret"
SAMPLING = Sampling(max_tokens=512)
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}, "b": {"type": "number"}}}
TOOL = {"name": "time", "description": "The time."}
FUNCTION = {"type": "function", "function": {**TOOL, "parameters": PARAMETERS}}
HERMES = '<tool_call>\n{"name": "time", "arguments": {"place": "Oslo", "b": 1.0}}\n</tool_call>'
CODER = (
    "<tool_call>\n<function=time>\n<parameter=place>\nOslo\n</parameter>\n<parameter=b>\n1.0\n</parameter>\n"
    "</function>\n</tool_call>"
)
# As each model writes a call; thinking ones write a thought before it, two of them in a prompt that has begun it.
CALLS = {
    "qwen2_5": f"I look.\n{HERMES}",
    "qwen3": f"<think>\nHm.\n</think>\n\nI look.\n{HERMES}",
    "llama3_1": '{"name": "time", "parameters": {"place": "Oslo", "b": 1.0}}',
    "qwen3_5_think": f"Hm.\n</think>\n\nI look.\n{CODER}",
}
LAST = {"qwen3_5_think": "Hm.\n</think>\n\n"}
FIRST = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Time in Oslo?"}]


class Chat:
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"

    def __init__(self) -> None:
        self.history: list = [*FIRST]

    def body(self) -> dict:
        return {"messages": self.history, "tools": [FUNCTION]}

    def said(self, answer) -> list:
        message = answer["choices"][0]["message"]
        self.history.append(message)
        return [(each["id"], each["function"]["arguments"]) for each in message.get("tool_calls") or []]

    def result(self, call_id, text) -> None:
        self.history.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def ask(self, text) -> None:
        self.history.append({"role": "user", "content": text})


class Messages(Chat):
    """`POST /v1/messages`."""

    path = "/v1/messages"

    def __init__(self) -> None:
        self.history = FIRST[1:]

    def body(self) -> dict:
        tools = [{**TOOL, "input_schema": PARAMETERS}]
        return {"system": FIRST[0]["content"], "max_tokens": 512, "messages": self.history, "tools": tools}

    def said(self, answer) -> list:
        self.history.append({"role": "assistant", "content": answer["content"]})
        return [(each["id"], json.dumps(each["input"])) for each in answer["content"] if each["type"] == "tool_use"]

    def result(self, call_id, text) -> None:
        block = {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": text}]}
        self.history.append({"role": "user", "content": [block]})


class Responses(Chat):
    """`POST /v1/responses`, with the whole history each time."""

    path = "/v1/responses"

    def __init__(self) -> None:
        self.history = FIRST[1:]

    def body(self) -> dict:
        tools = [{"type": "function", **TOOL, "parameters": PARAMETERS}]
        return {"instructions": FIRST[0]["content"], "input": self.history, "tools": tools}

    def said(self, answer) -> list:
        self.history += answer["output"]
        return [(each["call_id"], each["arguments"]) for each in answer["output"] if each["type"] == "function_call"]

    def result(self, call_id, text) -> None:
        self.history.append({"type": "function_call_output", "call_id": call_id, "output": text})


class GoingOn(Responses):
    """`POST /v1/responses`, each from the one before it."""

    def body(self) -> dict:
        return {**super().body(), "previous_response_id": self.before}

    def said(self, answer) -> list:
        calls = super().said(answer)
        self.history, self.before = [], answer["id"]
        return calls

    before = None


APIS = {"chat": Chat, "messages": Messages, "responses": Responses, "previous_response_id": GoingOn}


def texts_of(template) -> list[str]:
    begun = LAST.get(template, "")
    return [CALLS[template], f"{begun}Noon.", f"{begun} spaced  \n\n answer "]


def serving(script) -> tuple[Session, httpx.AsyncClient]:
    session = Session(script.agent, script.engine, SAMPLING)
    app = server_app(script.agent, {"s": session}, key=KEY, model="m")
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s/s/s", headers={"x-api-key": KEY})
    return session, client


async def talked(script, api):
    """Hold the conversation as a client would that acts upon what it is answered."""
    session, client = serving(script)
    async with client:
        for question in ("And then?", "Bye", None):
            response = await client.post(api.path, json=api.body())
            assert response.status_code == 200, response.text
            calls = api.said(response.json())
            for call_id, arguments in calls:
                assert json.loads(arguments) == {"place": "Oslo", "b": 1.0}
                api.result(call_id, "12:00")
            if not calls and question is not None:
                api.ask(question)
    return session.record()


async def played(tokenizer, template):
    answered = {"role": "assistant", "content": ""}
    history = [*FIRST, answered, {"role": "tool", "tool_call_id": "call_0", "name": "time", "content": "12:00"}]
    history += [answered, {"role": "user", "content": "Bye"}, answered]
    script = Script(tokenizer, texts_of(template))
    trajectory = await replayed(script, Task(id="t"), history, [FUNCTION], SAMPLING)
    assert trajectory.failure is None, trajectory.failure
    return trajectory, script


def check_same(record, trajectory) -> None:
    assert len(record.sequences) == len(trajectory.sequences)
    for ours, theirs in zip(record.sequences, trajectory.sequences, strict=True):
        for array in ARRAYS:
            assert getattr(ours, array).tobytes() == getattr(theirs, array).tobytes(), array
            assert getattr(ours, array).dtype == getattr(theirs, array).dtype, array
        assert ours.fork_reason == theirs.fork_reason


@pytest.mark.slow  # one of the templates wants a parser of vLLM's
@pytest.mark.parametrize("template", list(CALLS))
async def test_every_api_gives_the_arrays_of_the_executor(tokenizer_of, template_text, template):
    tokenizer = tokenizer_of(template_text(template))
    async with asyncio.timeout(120):
        trajectory, _ = await played(tokenizer, template)
        assert [message["content"] for message in trajectory.messages if message["role"] == "tool"] == ["12:00"]
        for api in APIS.values():
            record = await talked(Script(tokenizer, texts_of(template)), api())
            assert len(record.stop_reasons) == trajectory.num_turns == 3
            check_same(record, trajectory)


@pytest.mark.slow
@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("template", list(CALLS))
async def test_prompts_of_completions_give_them_too(tokenizer_of, template_text, template, as_text):
    """A client that renders by itself sends what the executor's engine was shown, end of turns included."""
    tokenizer = tokenizer_of(template_text(template))
    async with asyncio.timeout(120):
        trajectory, played_script = await played(tokenizer, template)
        script = Script(tokenizer, texts_of(template))
        session, client = serving(script)
        async with client:
            for request in played_script.engine.requests:
                ids = request.prompt_ids
                prompt = script.agent.codec.decode(ids) if as_text else ids.tolist()
                response = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 512})
                assert response.status_code == 200, response.text
    record = session.record()
    if len(trajectory.sequences) == 1:
        check_same(record, trajectory)
        return
    # Who was shown a prompt that goes on from nothing known cannot tell which turns it holds, nor why.
    assert len(record.sequences) == len(trajectory.sequences) == 2
    for ours, theirs in zip(record.sequences, trajectory.sequences, strict=True):
        for array in ("token_ids", "is_action", "logprobs", "versions"):
            assert getattr(ours, array).tobytes() == getattr(theirs, array).tobytes(), array


@pytest.mark.parametrize(
    ("written", "stop", "going_on", "second"),
    [
        ("Hi.<|im_end|>", [], "<|im_end|>\nA", "QHi.<|im_end|>\nA"),  # what ended the turn, which no client is told
        ("Hi.<|im_end|>", [], "\nA", "QHi.<|im_end|>\nA"),
        ("Hi.<|im_end|>", [], "<|im_start|>A", "QHi.<|im_end|><|im_start|>A"),
        ("Look up.\nObservation:", ["Observation:"], "Observation: 42", "QLook up.\nObservation: 42"),
        ("Look up.\nObservation:\n", ["Observation:"], "Observation: 42", "QLook up.\nObservation:\n 42"),
        ("Look up.\nObservation:\n", ["Observation:"], "Observation:\n42", "QLook up.\nObservation:\n42"),
        ("Look up.\nObservation:", ["Observation:"], "So 42", "QLook up.\nObservation:So 42"),
        # With a special token in its middle, which no client is told of either.
        ("Hi<|im_start|>x<|im_end|>", [], "<|im_end|>\nA", "QHi<|im_start|>x<|im_end|>\nA"),
        ("Hi<|im_start|>x\nObs:", ["Obs:"], "Obs: 42", "QHi<|im_start|>x\nObs: 42"),
        ("A<|im_start|>Bz<|im_end|>", ["B"], "B42", "QA<|im_start|>Bz<|im_end|>42"),
        # Nothing said: the same prompt again is the same prompt, and what a client writes behind it is known.
        ("<|im_end|>", [], "", "Q"),
        ("<|im_end|>", [], "<|im_end|>\nA", "Q<|im_end|>\nA"),
        ("\n", ["\n"], "", "Q"),
    ],
)
async def test_what_ended_a_completion_is_not_shown_twice(tokenizer_of, template_text, written, stop, going_on, second):
    script = Script(tokenizer_of(template_text("qwen2_5")), [])
    script.engine = ScriptedEngine([script.agent.codec.encode(text) for text in (written, "Bye")])
    session, client = serving(script)
    async with client:
        body = {"prompt": "Q", "max_tokens": 512, "stop": stop}
        told = (await client.post("/v1/completions", json=body)).json()["choices"][0]["text"]
        await client.post("/v1/completions", json={**body, "prompt": f"Q{told}{going_on}"})
    assert script.agent.codec.decode(script.engine.requests[1].prompt_ids) == second
    assert len(session.record().sequences) == (2 if second == "Q" else 1)
