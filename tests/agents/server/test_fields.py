"""Every field of the packages' own types of requests acts, or is refused, or is named as one that cannot matter."""

import json

import httpx
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import completion_create_params
from openai.types.chat import ChatCompletionAssistantMessageParam, ChatCompletionUserMessageParam
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from turngym.agents import ChatAgent, Sampling
from turngym.agents.server.anthropic_api import CountRequest, MessagesRequest
from turngym.agents.server.app import server_app
from turngym.agents.server.fields import IGNORED, Refusal
from turngym.agents.server.responses_wire import ResponsesRequest
from turngym.agents.server.session import Session
from turngym.agents.server.wire import ChatMessage, ChatRequest, CompletionRequest

KEY = "secret"
HISTORY = [{"role": "user", "content": "Hi"}]
BODIES = {
    "/v1/chat/completions": {"messages": HISTORY},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": HISTORY, "max_tokens": 9},
}
KINDS = [
    ("/v1/chat/completions", ChatRequest, chat_create_params.CompletionCreateParamsStreaming),
    ("/v1/completions", CompletionRequest, completion_create_params.CompletionCreateParamsStreaming),
    ("/v1/responses", ResponsesRequest, response_create_params.ResponseCreateParamsStreaming),
    ("/v1/messages", MessagesRequest, message_create_params.MessageCreateParamsStreaming),
    ("/v1/messages", MessagesRequest, beta_message_create_params.MessageCreateParamsStreaming),
]


def fields_of(params) -> set[str]:
    return set(params.__annotations__)


@pytest.fixture
def post(talk_of):
    """Post to an application whose prompts are made without thoughts."""
    tokenizer = talk_of("qwen3", []).tokenizer
    talk = talk_of("qwen3", [])
    talk.agent = ChatAgent(tokenizer, template_kwargs={"enable_thinking": False})
    talk.session = Session(talk.agent, talk.engine, Sampling(max_tokens=64))
    app = server_app(talk.agent, {"s": talk.session}, key=KEY, model="m")
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s", headers={"x-api-key": KEY})

    async def send(path, body):
        return await client.post(f"/s/s{path}", json=body)

    send.talk = talk
    return send


@pytest.mark.parametrize(("path", "request_kind", "params"), KINDS, ids=lambda each: getattr(each, "__module__", None))
def test_no_field_of_the_packages_passes_unseen(path, request_kind, params):
    known = set(request_kind.model_fields) | set(request_kind.refusals) | set(IGNORED)
    assert fields_of(params) - known == set()
    assert not set(request_kind.model_fields) & set(request_kind.refusals)


def test_counting_takes_what_a_prompt_is_made_of():
    matters = {"messages", "system", "tools"}
    others = {"model", "output_config", "tool_choice"}  # the form of an answer is no part of its prompt
    assert fields_of(message_count_tokens_params.MessageCountTokensParams) - set(IGNORED) == matters | others
    assert matters <= set(CountRequest.model_fields)


def test_no_field_of_a_message_passes_unseen():
    for params in (ChatCompletionUserMessageParam, ChatCompletionAssistantMessageParam):
        assert fields_of(params) <= set(ChatMessage.model_fields)


@pytest.mark.parametrize("path", list(BODIES))
async def test_what_is_refused_is_refused_and_its_harmless_values_are_taken(post, path):
    kind = {each: request_kind for each, request_kind, _ in KINDS}[path]
    for name, refusal in kind.refusals.items():
        assert isinstance(refusal, Refusal)
        for value in ({"a": 1}, "other", [1], True not in refusal.harmless):
            response = await post(path, {**BODIES[path], name: value})
            assert response.status_code == 400, (name, value)
            assert repr(name) in response.json()["error"]["message"]
        for value in (None, *refusal.harmless):
            assert (await post(path, {**BODIES[path], name: value})).status_code == 200, (name, value)


@pytest.mark.parametrize(("path", "request_kind", "params"), KINDS, ids=lambda each: getattr(each, "__module__", None))
async def test_what_is_ignored_changes_no_prompt_and_no_sampling(post, path, request_kind, params):
    names = fields_of(params) & set(IGNORED) - set(request_kind.refusals) - set(request_kind.model_fields)
    for number, name in enumerate(["session_id", *sorted(names)]):
        told = {"session_id": "s"} if name == "session_id" else {name: {"type": "enabled"}}
        response = await post(path, {**BODIES[path], **told})
        assert response.status_code == 200, name
        first, own = post.talk.engine.requests[0], post.talk.engine.requests[number]
        assert (own.prompt_ids.tolist(), own.sampling) == (first.prompt_ids.tolist(), first.sampling), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"audio": {"voice": "alloy", "format": "wav"}}, "'audio'"),
        ({"modalities": ["text", "audio"]}, "'modalities'"),
        ({"messages": [*HISTORY, {"role": "assistant", "audio": {"id": "a"}}, *HISTORY]}, "messages.1.audio"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": ""}}]}]},
            "input_audio",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "a"}}]}]}, "file"),
    ],
)  # fmt: skip
async def test_nothing_is_spoken_and_no_file_is_read(post, change, words):
    response = await post("/v1/chat/completions", {"messages": HISTORY, **change})
    assert response.status_code == 400
    assert words in response.text


@pytest.mark.parametrize("path", [*BODIES, "/tokenize"])
async def test_a_prompt_is_made_as_all_of_the_run(post, path):
    body = {"messages": HISTORY} if path == "/tokenize" else BODIES[path]
    for same in (None, {}, {"enable_thinking": False}):
        assert (await post(path, {**body, "chat_template_kwargs": same})).status_code == 200
    for other in ({"enable_thinking": True}, {"enable_thinking": 0}, {"enable_thinking": False, "mood": "glad"}):
        response = await post(path, {**body, "chat_template_kwargs": other})
        assert response.status_code == 400
        error = response.json()["error"]
        assert "--rollout.chat_template_kwargs" in error["message"]
        assert json.dumps({"enable_thinking": False}) in error["message"]
    if path == "/v1/chat/completions":
        assert post.talk.prompts()[0].endswith("<think>\n\n</think>\n\n")
