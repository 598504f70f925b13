"""The server as the real `openai` client sees it, checked against the types of that package."""

import asyncio

import httpx
import numpy as np
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

CALL = '<tool_call>\n{"name": "time", "arguments": {"place": "Osl{o"}}\n</tool_call>'
BOTH = f"Let me see.\n{CALL}\n" + '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'


def client_of(server, **options) -> openai.AsyncOpenAI:
    options = {"base_url": server.session_url("s"), "api_key": server.key, "max_retries": 0, **options}
    return openai.AsyncOpenAI(**options)


def user(text):
    return {"role": "user", "content": text}


async def test_a_chat_of_two_turns_is_one_sequence(served):
    talk, server = await served("qwen2_5", ["I am good!", "Ada"])
    client = client_of(server)
    history = [{"role": "developer", "content": "Be brief."}, user("How are you?")]
    first = await client.chat.completions.create(model="gpt-9", messages=history)
    ChatCompletion.model_validate(first.model_dump(), strict=True)
    assert first.choices[0].message.content == "I am good!"
    assert (first.model, first.object, first.choices[0].finish_reason) == ("gpt-9", "chat.completion", "stop")
    history += [first.choices[0].message, user("Your name?")]
    second = await client.chat.completions.create(model="gpt-9", messages=history)
    requests = talk.engine.requests
    assert second.usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"}) == {
        "prompt_tokens": len(requests[1].prompt_ids),
        "completion_tokens": 4,
        "total_tokens": len(requests[1].prompt_ids) + 4,
    }
    assert talk.prompts()[0].startswith("<|im_start|>system\nBe brief.<|im_end|>")
    (sequence,) = (await server.close("s")).sequences
    assert talk.tokenizer.decode(sequence.token_ids[sequence.is_action]) == "I am good!<|im_end|>Ada<|im_end|>"


async def test_tools_are_called_and_answered_in_parallel(served, tools):
    talk, server = await served("qwen2_5", [BOTH, BOTH, "Noon, rain."])
    client = client_of(server)
    history = [user("Time and weather in Oslo?")]
    answer = await client.chat.completions.create(model="m", messages=history, tools=tools, parallel_tool_calls=False)
    assert [call.function.name for call in answer.choices[0].message.tool_calls] == ["time"]
    answer = await client.chat.completions.create(model="m", messages=history, tools=tools, tool_choice="required")
    ChatCompletion.model_validate(answer.model_dump(), strict=True)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    calls = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("time", '{"place": "Osl{o"}'),
        ("weather", "{}"),
    ]
    assert len({call.id for call in calls}) == 2
    results = [{"role": "tool", "tool_call_id": call.id, "content": f"of {call.function.name}"} for call in calls]
    history += [choice.message.model_dump(exclude_unset=True), *results]
    final = await client.chat.completions.create(model="m", messages=history, tools=tools)
    assert final.choices[0].message.content == "Noon, rain."
    assert talk.prompts()[2].startswith(talk.prompts()[1] + BOTH)
    assert talk.prompts()[2].index("of time") < talk.prompts()[2].index("of weather")
    assert [s.num_actions for s in talk.session.record().sequences] == [
        len(talk.replies[0]),
        *[len(talk.replies[1]) + len(talk.replies[2])],
    ]


async def test_a_text_without_calls_is_shown_as_it_was_sampled(served, tools):
    texts = ["Same today. Tomorrow at ", "\n 5\n\n", " ", "Noon."]
    talk, server = await served("qwen2_5", texts)
    client, history = client_of(server), [user("a")]
    for text in texts:
        answer = await client.chat.completions.create(model="m", messages=history, tools=tools)
        assert answer.choices[0].message.content == text
        history += [answer.choices[0].message, user("b")]
    (sequence,) = talk.session.record().sequences
    assert sequence.num_actions == sum(map(len, talk.replies))


async def test_without_a_choice_of_tools_calls_are_text(served, tools):
    talk, server = await served("qwen2_5", [CALL, "Noon."])
    client = client_of(server)
    answer = await client.chat.completions.create(model="m", messages=[user("a")], tools=tools, tool_choice="none")
    assert (answer.choices[0].message.content, answer.choices[0].message.tool_calls) == (CALL, None)
    assert '"name": "time"' in talk.prompts()[0]  # told of them all the same: what is shown does not change


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["<think>\nHm.\n</think>\n\nSo it is.", BOTH, f"<think>a</think>{CALL}", "", "é ☃" * 40]
)
async def test_a_stream_says_what_one_answer_says(served, tools, text):
    talk, server = await served("qwen2_5", [text] * 3)
    client = client_of(server)
    asked = {"model": "m", "messages": [user("a")], "tools": tools, "logprobs": True}
    whole = await client.chat.completions.create(**asked)
    async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        final = await stream.get_final_completion()
    assert final.usage == whole.usage
    ours, theirs = final.choices[0], whole.choices[0]
    assert ours.finish_reason == theirs.finish_reason
    assert (ours.message.content or "") == (theirs.message.content or "")
    assert ours.message.model_extra.get("reasoning_content") == theirs.message.model_extra.get("reasoning_content")
    assert ours.logprobs == theirs.logprobs
    for mine, other in zip(ours.message.tool_calls or [], theirs.message.tool_calls or [], strict=True):
        assert (mine.function.name, mine.function.arguments) == (other.function.name, other.function.arguments)
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
    assert len({tuple(reply) for reply in talk.replies}) == 1


async def test_choices_stops_seeds_and_ids(served):
    talk, server = await served("qwen2_5", ["one STOP", "two", "three"])
    answer = await client_of(server).chat.completions.create(
        model="m",
        messages=[user("a")],
        n=2,
        stop=["STOP", "END"],
        seed=7,
        temperature=0.5,
        top_p=0.25,
        max_completion_tokens=50,
        extra_body={"top_k": 3, "min_p": 0.125, "return_token_ids": True},
    )
    assert sorted(choice.message.content for choice in answer.choices) == ["one ", "two"]
    first, second = [request.sampling for request in talk.engine.requests]
    assert (first.stop, first.seed, second.seed) == (("STOP", "END"), 7, 8)
    assert (first.temperature, first.top_p, first.top_k, first.min_p, first.max_tokens) == (0.5, 0.25, 3, 0.125, 50)
    assert answer.model_extra["prompt_token_ids"] == talk.engine.requests[0].prompt_ids.tolist()
    assert [choice.model_extra["token_ids"] for choice in answer.choices] == talk.replies
    assert {sampling.seed for s in talk.session.record().sequences for sampling in s.samplings.values()} == {7, 8}


async def test_logprobs_are_those_of_the_engine_for_each_sampled_token(served):
    talk, server = await served("qwen2_5", ["Hi ☃"])
    client = client_of(server)
    answer = await client.chat.completions.create(model="m", messages=[user("a")], logprobs=True)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == len(talk.replies[0]) == 3 + 3 + 1
    np.testing.assert_allclose([token.logprob for token in tokens], np.log(0.5), rtol=1e-6)
    assert [token.bytes for token in tokens[:3]] == [[72], [105], [32]]
    assert tokens[3].bytes is None  # a third of a character
    with pytest.raises(openai.BadRequestError, match="tells no top logprobs"):  # such is this engine
        await client.chat.completions.create(model="m", messages=[user("a")], logprobs=True, top_logprobs=2)


async def test_tokens_in_logprobs_may_be_named_by_their_ids(served):
    talk, server = await served("qwen2_5", ["Hi ☃"] * 3)
    client = client_of(server)
    extra = {"return_tokens_as_token_ids": True}
    chat = await client.chat.completions.create(model="m", messages=[user("a")], logprobs=True, extra_body=extra)
    named = [f"token_id:{each}" for each in talk.replies[0]]
    assert [each.token for each in chat.choices[0].logprobs.content] == named
    assert [each.bytes for each in chat.choices[0].logprobs.content[:3]] == [[72], [105], [32]]
    text = await client.completions.create(model="m", prompt="a", logprobs=0, extra_body=extra)
    assert text.choices[0].logprobs.tokens == named
    assert text.choices[0].logprobs.text_offset[:3] == [0, 1, 2]
    include = ["message.output_text.logprobs"]
    response = await client.responses.create(model="m", input="a", include=include, extra_body=extra)
    assert [each.token for each in response.output[0].content[0].logprobs] == named


async def test_the_first_chunk_of_a_stream_tells_the_prompts_ids(served):
    talk, server = await served("qwen2_5", ["one", "two"])
    asked = {"model": "m", "messages": [user("a")], "n": 2, "stream": True}
    stream = await client_of(server).chat.completions.create(**asked, extra_body={"return_token_ids": True})
    first, *others = [chunk async for chunk in stream]
    assert first.model_extra["prompt_token_ids"] == talk.engine.requests[0].prompt_ids.tolist()
    assert not any("prompt_token_ids" in chunk.model_extra for chunk in others)


async def test_text_completions_whole_and_streamed(served):
    talk, server = await served("qwen2_5", [" 4", " 5", " 6", " 7"])
    client = client_of(server)
    answer = await client.completions.create(model="m", prompt="2 + 2 =", logprobs=0)
    Completion.model_validate(answer.model_dump(), strict=True)
    assert answer.choices[0].text == " 4"
    assert answer.choices[0].logprobs.tokens == [" ", "4", "<|im_end|>"]
    assert answer.choices[0].logprobs.text_offset == [0, 1, 2]
    assert talk.prompts()[0] == "2 + 2 ="
    several = await client.completions.create(model="m", prompt=["2 + 3 =", "2 + 2 = 4, 3 + 3 ="])
    assert [choice.text for choice in several.choices] == [" 5", " 6"]
    assert [choice.index for choice in several.choices] == [0, 1]
    ids = talk.tokenizer.encode("3 + 4 =")
    stream = await client.completions.create(model="m", prompt=ids, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == " 7"
    assert chunks[-1].usage.prompt_tokens == len(ids)
    assert talk.engine.requests[3].prompt_ids.tolist() == ids
    assert [s.num_actions for s in talk.session.record().sequences] == [6, 3, 3]  # the third went on from the first


async def test_of_several_prompts_none_is_answered_where_one_is_too_long(served):
    talk, server = await served("qwen2_5", max_context=100)
    with pytest.raises(openai.BadRequestError, match="no room for an answer"):
        await client_of(server).completions.create(model="m", prompt=["a", "b" * 200])
    assert (talk.engine.requests, talk.session.num_turns) == ([], 0)
    several = await client_of(server).completions.create(model="m", prompt=["a", "b"], n=2)
    assert [choice.text for choice in several.choices] == [f"answer {index}" for index in range(4)]
    assert several.usage.prompt_tokens == 2


async def test_models_and_tokens(served, tools):
    talk, server = await served()
    client = client_of(server)
    assert [model.id async for model in client.models.list()] == ["policy"]
    assert (await client.models.retrieve("org/any")).id == "org/any"
    async with httpx.AsyncClient(base_url=server.url, headers={"x-api-key": server.key}) as http:
        answer = (await http.post("/tokenize", json={"prompt": "Hi <|im_end|>"})).json()
        assert answer == {"count": 4, "tokens": talk.tokenizer.encode("Hi <|im_end|>")}
        told = (await http.post("/tokenize", json={"prompt": "Hi <|im_end|>", "return_token_strs": True})).json()
        assert told["token_strs"] == talk.tokenizer.convert_ids_to_tokens(answer["tokens"])
        plain = await http.post("/tokenize", json={"prompt": "Hi <|im_end|>", "add_special_tokens": False})
        assert plain.json() == answer
        refused = await http.post("/tokenize", json={"prompt": "Hi", "add_special_tokens": True})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "add_special_tokens")
        asked = {"messages": [user("a")], "tools": tools}
        tokens = (await http.post("/s/s/v1/tokenize", json=asked)).json()["tokens"]
        assert (await http.post("/detokenize", json={"tokens": tokens})).json()["prompt"] == (
            talk.tokenizer.apply_chat_template([user("a")], tools=tools, add_generation_prompt=True, tokenize=False)
        )


async def test_a_session_is_named_by_url_header_or_body(served):
    talk, server = await served()
    other = server.open("t", talk.engine, talk.session.sampling)
    plain = client_of(server, base_url=f"{server.url}/v1")
    asked = {"model": "m", "messages": [user("a")]}
    await plain.chat.completions.create(**asked, extra_body={"session_id": "t"})
    await plain.chat.completions.create(**asked, extra_headers={"X-TurnGym-Session": "t"})
    await client_of(server, base_url=server.session_url("t")).chat.completions.create(**asked)
    assert (talk.session.num_turns, other.num_turns) == (0, 3)
    with pytest.raises(openai.BadRequestError, match="wanted a session") as refused:
        await plain.chat.completions.create(**asked)
    assert refused.value.param == "session_id"
    await server.close("t")
    with pytest.raises(openai.NotFoundError, match="there is no session 't'") as refused:
        await plain.chat.completions.create(**asked, extra_body={"session_id": "t"})
    assert refused.value.code == "session_not_found"


@pytest.mark.slow
async def test_nobody_comes_in_without_the_key(served):
    talk, server = await served()
    with pytest.raises(openai.AuthenticationError, match="this run's key"):
        await client_of(server, api_key="other").chat.completions.create(model="m", messages=[user("a")])
    async with httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        for path in ("/v1/models", "/s/s/v1/models", "/tokenize", "/nowhere"):
            assert (await http.get(path)).status_code == 401
        headers = {"authorization": f"bearer {server.key}"}
        assert (await http.get("/nowhere", headers=headers)).json()["error"]["type"] == "not_found_error"
        assert (await http.get("/tokenize", headers=headers)).status_code == 405
    assert talk.engine.requests == []
    assert server.url.startswith("http://127.0.0.1:")


async def test_a_client_that_goes_frees_its_request(served):
    talk, server = await served(token_latency_s=60.0)
    client = client_of(server)
    for options in ({}, {"stream": True}, {"n": 3}):
        task = asyncio.create_task(client.chat.completions.create(model="m", messages=[user("a")], **options))
        async with asyncio.timeout(60):
            while not talk.engine.num_running:
                await asyncio.sleep(0.001)
            task.cancel()
            while talk.engine.num_running:
                await asyncio.sleep(0.001)
        await asyncio.wait([task])
    assert talk.session.num_turns == 0
    assert talk.session.requests.num_running == 0


@pytest.mark.slow
async def test_the_clients_own_retry_is_given_the_recorded_answer(served):
    talk, server = await served()
    headers = []

    async def lose_first(response: httpx.Response) -> None:
        headers.append(response.request.headers["x-stainless-retry-count"])
        await response.aread()
        if len(headers) == 1:
            raise httpx.ReadError("lost on its way")

    http = httpx.AsyncClient(event_hooks={"response": [lose_first]})
    answer = await client_of(server, max_retries=2, http_client=http).chat.completions.create(
        model="m", messages=[user("a")]
    )
    assert headers == ["0", "1"]
    assert answer.choices[0].message.content == "answer 0"
    assert talk.session.num_turns == len(talk.engine.requests) == 1


async def test_stopping_ends_what_runs(served):
    talk, server = await served(token_latency_s=60.0)
    task = asyncio.create_task(client_of(server).chat.completions.create(model="m", messages=[user("a")]))
    async with asyncio.timeout(60):
        while not talk.engine.num_running:
            await asyncio.sleep(0.001)
        await server.stop()
        with pytest.raises(openai.NotFoundError, match="closed while"):
            await task
    assert talk.engine.num_running == 0
