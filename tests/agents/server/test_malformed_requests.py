"""Whatever comes over the wire is answered or refused: 2xx or 4xx, never 5xx, never silence."""

import asyncio
import copy
import json

import httpx
import numpy as np
import pytest

from turngym.agents.server.app import MAX_BODY_BYTES, server_app
from turngym.agents.server.server import Server

KEY = "secret"
CALL = '<tool_call>\n{"name": "\\ud800", "arguments": {"a": "\\udfff", "b": NaN}}\n</tool_call>'
BODIES = {
    "/v1/chat/completions": {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "Ada"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Hm.",
                "tool_calls": [{"id": "a", "type": "function", "function": {"name": "time", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "a", "content": "noon"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "time", "parameters": {"properties": {"a": {"type": "x"}}}}}
        ],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 2,
        "stop": ["END"],
        "seed": 1,
        "logprobs": True,
        "temperature": 1.0,
        "max_tokens": 16,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        "logit_bias": {"3": 1.5},
        "bad_words": ["x"],
        "presence_penalty": 0.5,
        "metadata": {"a": "b"},
    },
    "/v1/completions": {
        "model": "m",
        "prompt": "Hi",
        "max_tokens": 5,
        "stop": "x",
        "logprobs": 0,
        "stream": False,
        "structured_outputs": {"choice": ["a", "b"]},
        "min_tokens": 2,
    },
    "/v1/messages": {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "tool_use", "id": "a", "name": "t", "input": {"b": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "c"}]},
        ],
        "tools": [{"name": "t", "input_schema": {"properties": {"b": {"type": "integer"}}}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "stop_sequences": ["x"],
        "output_config": {"format": {"type": "json_schema", "schema": {}}},
        "stream": True,
    },
    "/v1/responses": {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "function_call", "call_id": "a", "name": "t", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "noon"},
        ],
        "tools": [{"type": "function", "name": "t", "parameters": {}}, {"type": "custom", "name": "c"}],
        "stream": True,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": {}}},
        "tool_choice": {"type": "function", "name": "t"},
        "metadata": {},
    },
    "/v1/messages/count_tokens": {
        "model": "m",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
        "tools": [{"name": "t", "input_schema": {"properties": {"b": {"type": "integer"}}}}],
        "tool_choice": {"type": "auto"},
    },
    "/tokenize": {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True, "tools": []},
    "/detokenize": {"tokens": [1, 2, 3]},
}
JUNK = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, -0.5, 1e308, "", "x", "\x00", "<|im_end|>", "user", "{}", "é",
    [], [[]], {}, [None], {"type": "image_url", "image_url": {"url": "x"}}, {"type": "json_schema"}, {"a": {"b": [1]}},
    [1, "a"], {"type": "text"}, {"function": {"name": "time"}}, ["", ""], {"role": "user"}, [{"role": "user"}],
]  # fmt: skip
COUNTS = [b"0", b"0", b"0", b"1", b"-1", b"\xb2", b"", b"9" * 5000]
RAW = [
    b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": NaN}', b'"x"', b"[" * 5000, b'{"a":' * 5000, b"{}" * 2, b"\x00",
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}', b'{"prompt": "\\udfff"}', b'{"messages": [1e999]}',
    b'{"messages": [{"role": "user", "content": "a"}], "tools": [' + b'{"type":"function","function":{"name":"a",'
    b'"parameters":' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}}]}",
]  # fmt: skip


def places(value, path=()):
    """All places in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def mutated(rng, body):
    """Put junk in some places, or take something out."""
    body = copy.deepcopy(body)
    for _ in range(int(rng.integers(1, 4))):
        found = [path for path in places(body) if path]
        path = found[int(rng.integers(len(found)))]
        home = body
        for key in path[:-1]:
            home = home[key]
        kind = rng.random()
        junk = copy.deepcopy(JUNK[int(rng.integers(len(JUNK)))])
        if kind < 0.2:
            del home[path[-1]]
        elif kind < 0.3 and isinstance(home, dict):
            home[str(rng.choice(["session_id", "guided_json", "top_k", "x", "content", "suffix", "functions"]))] = junk
        else:
            home[path[-1]] = junk
        if not body:
            break
    return body


QUERIES = [
    "", "?limit=1", "?limit=0", "?limit=-1", "?limit=abc", "?limit=99999999999999999999", "?limit=1&limit=2",
    "?after=zz", "?after=%ff", "?order=asc", "?order=desc", "?order=up", "?include[]=x", "?stream=true", "?stream=x",
    "?starting_after=x", "?%00", "?=&&=",
]  # fmt: skip
IDS = [
    "{known}",
    "{known}x",
    "resp_x",
    "%00",
    "%ff",
    "%2e%2e",
    "a%2Fb",
    "x" * 9000,
    "\u2603".encode().hex(),
    "input_items",
]


def random_look(rng) -> tuple[str, str]:
    """A method and a path of a request without a body."""
    method = str(rng.choice(["GET", "GET", "GET", "DELETE", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "POST"]))
    path = f"/v1/responses/{rng.choice(IDS)}{rng.choice(['', '', '/input_items', '/cancel', '/'])}"
    path = str(rng.choice([path, path, path, "/v1/models", "/v1/models/a%2Fb%ff", "/v1/other"]))
    return method, f"{path}{rng.choice(QUERIES)}"


def random_body(rng, path) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return RAW[int(rng.integers(len(RAW)))]
    content = json.dumps(mutated(rng, BODIES[path])).encode()
    if kind < 0.2:
        at = int(rng.integers(len(content) + 1))
        return content[:at] + rng.bytes(int(rng.integers(0, 3))) + content[at + int(rng.integers(0, 3)) :]
    return content


@pytest.fixture
def post(talk_of):
    """Post to the application, without sockets: `status, text = await post(path, body, headers)`."""
    talk = talk_of("qwen2_5", [])
    talk.texts = _Texts()
    app = server_app(talk.agent, {"s": talk.session}, key=KEY, model="m")
    client = httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url="http://s")

    return sending(client, talk)


@pytest.fixture
async def post_by_socket(talk_of):
    """The same over a socket, to a server as a run starts it."""
    talk = talk_of("qwen2_5", [])
    talk.texts = _Texts()
    server = Server(talk.agent, key=KEY)
    await server.start()
    server._sessions["s"] = talk.session
    async with httpx.AsyncClient(base_url=server.url) as client:
        send = sending(client, talk)
        send.server = server
        yield send
    await server.stop()


def sending(client, talk):
    async def send(path, body, headers=None, method="POST"):
        headers = {"authorization": f"Bearer {KEY}", **(headers or {})}
        async with asyncio.timeout(60):
            response = await client.request(method, f"/s/s{path}", content=body, headers=headers)
        return response.status_code, response.text

    send.talk = talk
    return send


class _Texts(list):
    """Answers without end: one with calls that no client may be sent as they are, one plain."""

    def __init__(self) -> None:
        super().__init__([CALL, "plain"])

    def pop(self, place):
        first = super().pop(place)
        self.append(first)
        return first


async def check_some(post, seed, num_requests):
    rng = np.random.default_rng(seed)
    seen = {}
    for _ in range(num_requests):
        path = str(rng.choice(list(BODIES)))
        body = random_body(rng, path)
        count = COUNTS[int(rng.integers(len(COUNTS)))]
        status, text = await post(path, body, {"x-stainless-retry-count": count})
        check_answer(status, text, f"{path} {body!r}")
        seen.setdefault(path, set()).add(status)
    assert post.talk.engine.num_running == 0
    return seen


def check_answer(status, text, what) -> None:
    assert 200 <= status < 300 or status == 307 or 400 <= status < 500, f"{status} {text} for {what}"
    if status >= 400 and not what.startswith("HEAD"):
        error = json.loads(text)["error"]
        assert error["message"]
        assert error["type"].endswith("_error")


async def look_at_some(post, seed, num_requests) -> dict[str, set[int]]:
    """Ask for stored responses and models, and delete some."""
    rng = np.random.default_rng(seed)
    seen: dict[str, set[int]] = {}
    for _ in range(num_requests):
        method, path = random_look(rng)
        if "{known}" in path:
            status, text = await post("/v1/responses", b'{"input": "Hi"}')
            assert status == 200, text
            path = path.replace("{known}", json.loads(text)["id"])
        status, text = await post(path, b"", method=method)
        check_answer(status, text, f"{method} {path}")
        assert status != 307 or path.partition("?")[0].endswith("/")  # to the path without it
        seen.setdefault(method, set()).add(status)
    return seen


@pytest.mark.slow
async def test_whatever_is_looked_for_is_found_or_refused(post):
    seen = await look_at_some(post, 7, 300)
    assert {200, 404} <= seen["GET"]
    assert {200, 404} <= seen["DELETE"]
    assert 405 in seen["PUT"]
    post.talk.session.record()


@pytest.mark.slow
async def test_a_socket_carries_harmed_requests_as_well(post_by_socket):
    seen = await check_some(post_by_socket, 3, 200)
    assert {200, 400} <= seen["/v1/messages/count_tokens"]
    await look_at_some(post_by_socket, 8, 60)


@pytest.mark.slow
async def test_what_is_no_http_ends_its_connection_alone(post_by_socket):
    server = post_by_socket.server
    host, port = server.url.removeprefix("http://").split(":")
    key = f"authorization: Bearer {KEY}\r\n".encode()
    raw = [
        b"\x00\xff" * 50 + b"\r\n\r\n",
        b"POST /s/s/v1/chat/completions HTTP/9.9\r\n\r\n",
        b"POST /s/s/v1/messages HTTP/1.1\r\nhost: a\r\n" + key + b"content-length: 100\r\n\r\n{",
        b"POST /s/s/v1/messages HTTP/1.1\r\nhost: a\r\n" + key + b"content-length: -5\r\n\r\n{}",
        b"POST /s/s/v1/responses HTTP/1.1\r\nhost: a\r\n" + key + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n",
        b"GET /s/s/v1/models HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    ]
    for each in raw:
        async with asyncio.timeout(60):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(each)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
        assert answer == b"" or answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), (each[:60], answer[:80])
    status, _ = await post_by_socket("/v1/completions", b'{"prompt": "Hi"}')
    assert status == 200
    assert post_by_socket.talk.engine.num_running == 0


async def test_what_is_sent_unharmed_is_answered(post):
    for path, body in BODIES.items():
        status, text = await post(path, json.dumps(body).encode())
        assert status == 200, text


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_a_harmed_request_is_answered_or_refused(post, seed):
    seen = await check_some(post, seed, 200)
    assert all(400 in statuses for statuses in seen.values())
    assert 200 in seen["/v1/chat/completions"]
    post.talk.session.record()


@pytest.mark.soak
async def test_ten_thousand_harmed_requests_are_answered_or_refused(post):
    await check_some(post, 99, 10_000)


@pytest.mark.parametrize("path", list(BODIES))
@pytest.mark.parametrize("body", RAW, ids=range(len(RAW)))
async def test_what_is_no_request_is_refused(post, path, body):
    status, text = await post(path, body)
    assert 400 <= status < 500 or b"parameters" in body, text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "a data: URL"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"n": 129}, "n"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "needs a schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": [1]}}}, "schema"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "an answer has one form"),
        ({"guided_json": "{"}, "needs JSON"),
        ({"guided_choice": []}, "none empty"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "are made here"),
        ({"logit_bias": {"a": 1}}, "logit_bias names 'a'"),
        ({"logit_bias": {"99999": 1}}, "logit_bias names '99999'"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias names"),
        ({"logit_bias": {"3": 101}}, "logit_bias.3"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"bad_words": [""]}, "bad_words.0"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"ignore_eos": True}, "min_tokens holds the end back"),
        ({"include_stop_str_in_output": True}, "ends before its stop string"),
        ({"truncate_prompt_tokens": 3}, "no prompt is cut"),
        ({"tools": [], "tool_choice": "required"}, "there are no such tools"),
        ({"top_logprobs": 2, "logprobs": False}, "set logprobs to true"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "not among the tools"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"stop": [""]}, "stop"),
        ({"seed": 2**63}, "seed"),
    ],
)
async def test_a_refusal_names_the_field(post, change, words):
    status, text = await post("/v1/chat/completions", json.dumps({**BODIES["/v1/chat/completions"], **change}))
    assert status == 400
    error = json.loads(text)["error"]
    assert error["type"] == "invalid_request_error"
    assert any(word in f"{error['message']} {error['param']}" for word in words.split("|"))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", f"{10**309}.0"])
@pytest.mark.parametrize("path", list(BODIES))
async def test_a_number_that_json_has_not_is_refused_before_anything_is_sampled(post, path, number):
    for body in ({**BODIES[path], "tools": [{"type": "other", "x": "@"}]}, {**BODIES[path], "nobodys": [{"a": "@"}]}):
        status, text = await post(path, json.dumps(body).replace('"@"', number))
        assert status == 400
        assert json.loads(text)["error"]["message"].startswith("the body")
    assert not post.talk.engine.requests


async def test_large_numbers_and_their_like_in_texts_are_taken(post):
    for value in ("1e308", str(10**400), '"NaN, Infinity, 1e999"', json.dumps("\x00" * 6 + "\x7f")):
        status, text = await post("/v1/completions", f'{{"prompt": "Hi", "nobodys": {value}}}')
        assert status == 200, text


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "'text' needs text"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "'text' needs text"),
        ("/v1/responses", {"input": [{"type": "message", "role": "user"}]}, "'message' needs content"),
        ("/v1/responses", {"input": [{"type": "item_reference", "id": "a"}]}, "'item_reference' are not known"),
    ],
)
async def test_a_refusal_tells_the_reason_that_fits_what_was_sent(post, path, change, words):
    status, text = await post(path, json.dumps({**BODIES[path], **change}))
    assert (status, words in text) == (400, True), text


OPENAIS = {"type": "image_url", "image_url": {"url": "data:image/png;base64,é"}}
ANTHROPICS = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "é"}}


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/v1/chat/completions", OPENAIS),
        ("/v1/messages", ANTHROPICS),
        ("/v1/messages/count_tokens", ANTHROPICS),
        ("/tokenize", OPENAIS),
    ],
)
async def test_an_image_that_is_no_base64_is_refused(post, path, part):
    body = {"messages": [{"role": "user", "content": [part]}], "max_tokens": 9}
    status, text = await post(path, json.dumps(body, ensure_ascii=False))
    assert (status, "no base64" in text) == (400, True), text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/tokenize"])
async def test_half_a_surrogate_pair_in_arguments_is_shown_as_a_question_mark(post, path):
    said = '{"x": "a\\ud83d", "y": "\\ud83d\\ude00"}'
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": said}}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "noon"},
    ]
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": said},
        {"type": "function_call_output", "call_id": "a", "output": "noon"},
    ]
    status, text = await post(path, json.dumps({"input": items} if path == "/v1/responses" else {"messages": messages}))
    assert status == 200, text
    told = post.talk.tokenizer.decode(json.loads(text)["tokens"]) if path == "/tokenize" else post.talk.prompts()[0]
    assert '{"x": "a?", "y": "\U0001f600"}' in told


@pytest.mark.parametrize("properties", [None, [], {"x": True}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_schemas_without_properties_are_taken(post, path, properties):
    parameters = {"type": "object", "properties": properties}
    tool = {"type": "function", "name": "t", "parameters": parameters, "input_schema": parameters}
    tool = {"type": "function", "function": tool} if path == "/v1/chat/completions" else tool
    tool = {"name": "t", "input_schema": parameters} if path == "/v1/messages" else tool
    status, text = await post(path, json.dumps({**BODIES[path], "tools": [tool]}))
    assert status == 200, text
    assert f'"properties": {json.dumps(properties or {})}' in post.talk.prompts()[0]


async def test_a_word_that_chooses_no_tool_is_refused(post):
    for path in ("/v1/chat/completions", "/v1/responses"):
        status, text = await post(path, json.dumps({**BODIES[path], "tool_choice": "other"}))
        assert (status, "tool_choice" in text) == (400, True)


@pytest.mark.parametrize("name", [{"a": 1}, ["t"], 7, True, "other"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_choice_of_no_tool_is_refused(post, path, name):
    chosen = {"type": "tool" if path == "/v1/messages" else "function", "name": name, "function": {"name": name}}
    status, text = await post(path, json.dumps({**BODIES[path], "tool_choice": chosen}))
    assert (status, "tool_choice" in text) == (400, True)


async def test_shapes_that_frameworks_send_are_taken(post):
    history = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "there"}],
            "name": "Ada",
        },
        {
            "role": "assistant",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "t", "arguments": ""}}],
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "noon"}]},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "user", "content": "And?", "name": "UnnamedAgent"},
    ]
    body = {"messages": history, "tools": [], "tool_choice": "auto", "stream": None, "presence_penalty": 0}
    status, text = await post("/v1/chat/completions", json.dumps(body))
    assert status == 200, text
    (prompt,) = post.talk.prompts()
    assert "<|im_start|>user\nHi there<|im_end|>" in prompt
    assert "noon" in prompt
    assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>" in prompt


async def test_a_body_may_not_be_endless(post):
    status, text = await post("/v1/chat/completions", b" " * (MAX_BODY_BYTES + 1))
    assert (status, json.loads(text)["error"]["type"]) == (413, "invalid_request_error")
