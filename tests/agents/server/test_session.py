import asyncio
from dataclasses import replace

import numpy as np
import pytest

from turngym.agents import Sampling
from turngym.agents.base import RequestRefusedError
from turngym.agents.server.api_errors import ApiError
from turngym.agents.server.asks import ChatAsk, ContextLengthError, TextAsk
from turngym.agents.server.canonical import chat_messages
from turngym.agents.server.retries import Asked, KeyReusedError, SessionClosedError
from turngym.errors import EngineError, TrajectoryError
from turngym.executors.engines.scripted import Reply

SAMPLING = Sampling(max_tokens=256)


def user(text):
    return {"role": "user", "content": text}


def said(answer):
    """The message that a client keeps of an answer."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in answer.calls
    ]
    return {"role": "assistant", "content": answer.content or None, **({"tool_calls": calls} if calls else {})}


async def ask(talk, messages, **options):
    return await talk.session.chat(ChatAsk(chat_messages(messages), SAMPLING, **options))


async def ask_one(talk, messages, **options):
    (answer,) = await ask(talk, messages, **options)
    return answer


async def test_a_conversation_is_one_sequence_of_the_tokens_that_were_sampled(talk_of):
    talk = talk_of("qwen2_5", ["I am good!", "Ada"])
    history = [user("How are you?")]
    first = await ask_one(talk, history)
    assert (first.content, first.thought, first.calls, first.finish_reason) == ("I am good!", None, (), "stop")
    history += [said(first), user("Your name?")]
    second = await ask_one(talk, history)
    (sequence,) = talk.session.record().sequences
    text = talk.tokenizer.decode(sequence.token_ids[sequence.is_action])
    assert text == "I am good!<|im_end|>Ada<|im_end|>"
    assert len(first.completion.token_ids) == len("I am good!") + 1  # byte by byte, and the end
    assert (
        sequence.token_ids[: -len(second.completion.token_ids)].tolist() == talk.engine.requests[1].prompt_ids.tolist()
    )
    assert sequence.parent is None
    assert sorted(sequence.samplings) == [0, 1]


async def test_what_a_client_serialises_otherwise_is_the_same_history(talk_of, tools):
    call = (
        "<think>\nWhich?\n</think>\n\nLet me  look.\n"
        '<tool_call>\n{"name": "time", "arguments": {"place": "Oslo", "b": 1.0}}\n</tool_call>'
    )
    talk = talk_of("qwen2_5", [call, "Noon."])
    first = await ask_one(talk, [user("What time is it?")], tools=tools)
    assert first.thought == "Which?"
    assert first.content == "Let me  look."
    assert (first.calls[0].name, first.finish_reason) == ("time", "tool_calls")
    changed = {
        "role": "assistant",
        "content": [{"type": "text", "text": " Let me look. "}],
        "tool_calls": [
            {"id": "other", "function": {"name": "time", "arguments": '{ "b":1,\n"place" : "Oslo" }'}},
        ],
        "audio": None,
    }
    tool = {"role": "tool", "tool_call_id": "other", "content": "12:00"}
    await ask_one(talk, [user(" What time is it?\n"), changed, tool], tools=tools)
    (sequence,) = talk.session.record().sequences
    assert talk.tokenizer.decode(sequence.token_ids[sequence.is_action]) == f"{call}<|im_end|>Noon.<|im_end|>"


async def test_a_question_that_is_indented_otherwise_is_another_one(talk_of):
    talk = talk_of("qwen2_5")
    one, other = "if a:\n    b()\n    c()", "if a:\n    b()\nc()"
    answer = said(await ask_one(talk, [user(one)]))
    await ask_one(talk, [user(other), answer, user("go")])
    await ask_one(talk, [user(f"{one}\n"), answer, user("go")])
    assert [prompt.count(other) for prompt in talk.prompts()] == [0, 1, 0]
    assert len(talk.session.record().sequences) == 2


async def test_an_edited_history_is_a_branch_that_trains_nothing_twice(talk_of, check_record):
    talk = talk_of("qwen2_5", ["one", "two", "other", "again"])
    history = [user("a")]
    history += [said(await ask_one(talk, history)), user("b")]
    history += [said(await ask_one(talk, history)), user("c")]
    edited = [*history[:3], {"role": "assistant", "content": "TWO"}, user("c")]
    await ask_one(talk, edited)
    await ask_one(talk, [*history[:2], user("d")])
    record = talk.session.record()
    requests = talk.engine.requests
    check_record(record, requests, talk.replies)
    first, second, third = record.sequences
    assert [s.num_actions for s in record.sequences] == [8, 6, 6]
    assert first.parent is None
    shared = len(requests[0].prompt_ids) + 4
    for branch in (second, third):
        assert branch.parent[0] == 0
        assert branch.parent[1] >= shared
        assert branch.fork_reason == "another request went on from turn 0"
        assert not branch.is_action[:shared].any()
        assert (branch.turn[: len(requests[0].prompt_ids)] == -1).all()
        assert branch.turn[len(requests[0].prompt_ids)] == 0


async def test_sub_agents_at_once_and_n_are_branches(talk_of, check_record):
    talk = talk_of("qwen2_5", token_latency_s=0.001)
    answers = await ask(talk, [user("a")], n=3)
    assert len({answer.content for answer in answers}) == 3
    follow = [ask_one(talk, [user("a"), said(answer), user(f"go {n}")]) for n, answer in enumerate(answers)]
    system = {"role": "system", "content": "You help another agent."}
    await asyncio.gather(*follow, ask_one(talk, [system, user("x")]), ask_one(talk, [system, user("y")]))
    record = talk.session.record()
    assert len(record.sequences) == 5
    assert len(record.stop_reasons) == 8
    assert len(record.conversations) == 5
    assert sum(s.num_actions for s in record.sequences) == sum(map(len, talk.replies))
    assert {turn for s in record.sequences for turn in s.samplings} == set(range(8))


async def test_equal_answers_of_two_agents_are_continued_one_each(talk_of):
    talk = talk_of("qwen2_5", ["same", "same", "left", "right"])
    first, _ = await asyncio.gather(*[ask_one(talk, [user("a")]) for _ in range(2)])
    history = [user("a"), said(first)]
    await asyncio.gather(*[ask_one(talk, [*history, user("b")]) for _ in range(2)])
    sequences = talk.session.record().sequences
    assert [sorted(s.samplings) for s in sequences] == [[0, 2], [1, 3]]


async def test_a_retry_is_given_the_same_answer(talk_of):
    talk = talk_of("qwen2_5", token_latency_s=0.001)
    question = ChatAsk(chat_messages([user("a")]), SAMPLING)
    again = Asked(b"digest", is_retry=True)
    first = asyncio.create_task(talk.session.chat(question, Asked(b"digest")))
    await asyncio.sleep(0)
    beside = asyncio.create_task(talk.session.chat(question, again))
    assert await first is await beside is await talk.session.chat(question, again)
    assert len(talk.engine.requests) == 1
    await talk.session.chat(question, Asked(b"digest"))  # no retry: another agent asks the same
    await talk.session.chat(question, Asked(b"digest", key="k"))
    await talk.session.chat(question, Asked(b"digest", key="k"))
    assert len(talk.engine.requests) == 3
    with pytest.raises(KeyReusedError, match="'k'"):
        await talk.session.chat(question, Asked(b"other", key="k"))


async def test_a_request_that_nobody_waits_for_is_cancelled_and_leaves_nothing(talk_of):
    talk = talk_of("qwen2_5", token_latency_s=60.0)
    question = ChatAsk(chat_messages([user("a")]), SAMPLING, n=2)
    first = asyncio.create_task(talk.session.chat(question, Asked(b"digest")))
    second = asyncio.create_task(talk.session.chat(question, Asked(b"digest", is_retry=True)))
    async with asyncio.timeout(30):
        while talk.engine.num_running < 2:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait([first])
        assert talk.engine.num_running == 2
        second.cancel()
        while talk.engine.num_running:
            await asyncio.sleep(0)
    assert talk.session.record().sequences == ()
    assert talk.session.num_turns == 0


@pytest.mark.parametrize("again", [Asked(b"digest", is_retry=True), Asked(b"digest", key="k")])
async def test_a_retry_while_the_first_request_is_being_cancelled_is_sampled_anew(talk_of, again):
    talk = talk_of("qwen2_5")
    question = ChatAsk(chat_messages([user("a")]), SAMPLING)
    generate, ending, ended = talk.engine.generate, asyncio.Event(), asyncio.Event()

    async def slow_to_end(*arguments):
        talk.engine.generate = generate
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await ended.wait()

    talk.engine.generate = slow_to_end
    first = asyncio.create_task(talk.session.chat(question, replace(again, is_retry=False)))
    async with asyncio.timeout(30):
        while talk.engine.generate is not generate:
            await asyncio.sleep(0)
        first.cancel()
        await ending.wait()
        (answer,) = await talk.session.chat(question, again)
        ended.set()
        await asyncio.wait([first])
        while talk.session.requests.num_running:
            await asyncio.sleep(0)
        assert await talk.session.chat(question, again) == [answer]
    assert len(talk.engine.requests) == talk.session.num_turns == 1


async def test_closing_ends_what_runs(talk_of):
    talk = talk_of("qwen2_5", token_latency_s=60.0)
    running = asyncio.create_task(ask_one(talk, [user("a")]))
    async with asyncio.timeout(30):
        while not talk.engine.num_running:
            await asyncio.sleep(0)
        await talk.session.close()
        with pytest.raises(SessionClosedError):
            await running
    assert talk.engine.num_running == 0
    with pytest.raises(SessionClosedError):
        await ask_one(talk, [user("a")])


async def test_calls_that_nobody_can_read_go_back_to_the_model(talk_of, tools):
    bad = "<tool_call>\n{oops}\n</tool_call>"
    good = '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    talk = talk_of("qwen2_5", [good + bad, bad])
    first = await ask_one(talk, [user("a")], tools=tools)
    assert [call.name for call in first.calls] == ["time"]
    tool = {"role": "tool", "tool_call_id": first.calls[0].id, "content": "noon"}
    history = [user("a"), said(first), tool]
    second = await ask_one(talk, history, tools=tools)
    shown = talk.prompts()[1]
    assert shown.index("noon") < shown.index("a tool call wants the form")
    assert (second.content, second.calls, second.finish_reason) == (bad, (), "stop")
    await ask_one(talk, [*history, said(second), user("Why?")], tools=tools)
    shown = talk.prompts()[2]
    assert shown.count("a tool call wants the form") == 2
    assert shown.rindex("a tool call wants the form") < shown.index("Why?")
    assert len(talk.session.record().sequences) == 1


async def test_a_call_that_is_nested_too_deeply_is_recorded_and_goes_back_to_the_model(talk_of, tools):
    deep = '<tool_call>\n{"name": "time", "arguments": {"x": ' + "[" * 600 + "]" * 600 + "}}\n</tool_call>"
    talk = talk_of("qwen2_5", [deep], max_context=1 << 16)
    talk.session.sampling = replace(SAMPLING, max_tokens=4096)
    (first,) = await talk.session.chat(ChatAsk(chat_messages([user("a")]), talk.session.sampling, tools=tools))
    assert (first.content, first.calls) == (deep, ())
    await ask_one(talk, [user("a"), said(first), user("Why?")], tools=tools)
    assert "nested too deeply" in talk.prompts()[1]
    assert talk.session.record().sequences[0].num_actions == sum(map(len, talk.replies))


@pytest.mark.parametrize(("levels", "is_read"), [(64, True), (65, False), (900, False)])
async def test_arguments_of_a_history_that_are_nested_too_deeply_stay_text(talk_of, levels, is_read):
    talk = talk_of("qwen2_5", max_context=1 << 16)
    arguments = '{"a":' * levels + "1" + "}" * levels
    call = {"id": "c", "type": "function", "function": {"name": "time", "arguments": arguments}}
    history = [user("a"), {"role": "assistant", "content": None, "tool_calls": [call]}, user("b")]
    (_, message, _) = chat_messages(history)
    assert isinstance(message["tool_calls"][0]["function"]["arguments"], dict) == is_read
    await ask_one(talk, history)
    assert talk.prompts()[0].replace("\\", "").count('{"a":') == levels  # the template writes text as JSON, too


async def test_what_a_request_may_use_is_bounded(talk_of):
    talk = talk_of("qwen2_5", max_context=100)
    await talk.session.chat(ChatAsk(chat_messages([user("a")]), replace(SAMPLING, max_tokens=4096)))
    (request,) = talk.engine.requests
    assert request.sampling.max_tokens == 100 - len(request.prompt_ids)
    with pytest.raises(ContextLengthError, match="no room for an answer in a context of 100"):
        await ask_one(talk, [user("a" * 200)])
    assert talk.session.lost is None


async def test_a_failed_engine_leaves_nothing(talk_of):
    talk = talk_of("qwen2_5", [EngineError("gone"), EngineError("gone")])
    with pytest.raises(EngineError, match="gone"):
        await ask(talk, [user("a")], n=2)
    assert talk.session.num_turns == 0
    assert talk.session.lost is None  # nothing was sampled


@pytest.mark.parametrize("later", [EngineError("gone"), RequestRefusedError("no"), ApiError("the episode is over")])
async def test_an_answer_that_cannot_be_recorded_is_noted_whatever_comes_after_it(talk_of, later):
    talk = talk_of("qwen2_5", ["one", Reply([1], None), later, "two"])
    with pytest.raises(TrajectoryError, match="without logprobs"):
        await ask(talk, [user("a")], n=2)
    assert talk.session.num_turns == 0  # all answers to a request or none
    with pytest.raises(type(later)):
        await ask_one(talk, [user("b")])
    await ask_one(talk, [user("c")])
    assert isinstance(talk.session.lost, TrajectoryError)


@pytest.mark.parametrize("kind", ["text", "ids"])
async def test_raw_prompts_go_on_from_the_longest_context_known(talk_of, kind, check_record):
    talk = talk_of("qwen2_5", [" 4", " 6", " 5"])
    encode = talk.tokenizer.encode

    async def go(prompt, answer=None, more=""):
        if kind == "text":
            whole = prompt + (answer.content if answer else "") + more
            (got,) = await talk.session.complete([TextAsk(whole, SAMPLING)])
            return whole, got
        ids = np.asarray([*prompt, *(answer.completion.token_ids if answer else []), *encode(more)], np.int32)
        (got,) = await talk.session.complete([TextAsk(ids, SAMPLING)])
        return ids, got

    begin = "2 + 2 =" if kind == "text" else encode("2 + 2 =")
    prompt, first = await go(begin)
    assert first.content == " 4"
    await go(prompt, first, "\n3 + 3 =")
    await go(prompt, first, "\n2 + 3 =")
    record = talk.session.record()
    check_record(record, talk.engine.requests, talk.replies)
    assert [s.num_actions for s in record.sequences] == [6, 3]
    assert talk.prompts()[1] == "2 + 2 = 4<|im_end|>\n3 + 3 ="


async def test_several_texts_are_sampled_together_and_branch_as_they_would_alone(talk_of, check_record):
    talk = talk_of("qwen2_5", [" 4", " 6", " 5", " 7"], token_latency_s=0.001)
    prompts = ["2 + 2 =", "2 + 2 =", "3 + 3 ="]
    asked = asyncio.create_task(talk.session.complete([TextAsk(prompt, SAMPLING) for prompt in prompts]))
    async with asyncio.timeout(30):
        while talk.engine.num_running < 3:
            await asyncio.sleep(0)
    assert [answer.content for answer in await asked] == [" 4", " 6", " 5"]
    await talk.session.complete([TextAsk("2 + 2 = 4, 3 + 4 =", SAMPLING)])
    record = talk.session.record()
    check_record(record, talk.engine.requests, talk.replies)
    assert [sorted(sequence.samplings) for sequence in record.sequences] == [[0, 3], [1], [2]]
    assert (record.history["branches_new"], record.history["continued"]) == (2, 1)


@pytest.mark.parametrize("wrong", ["too long", "the engine fails", "cannot be recorded", "abandoned"])
async def test_of_several_texts_all_are_recorded_or_none(talk_of, wrong):
    failure = {"the engine fails": EngineError("gone"), "cannot be recorded": Reply([1], None)}.get(wrong, "two")
    talk = talk_of("qwen2_5", ["one", failure], max_context=100, token_latency_s=60.0 if wrong == "abandoned" else 0.0)
    prompts = ["a", "b" * 200 if wrong == "too long" else "b"]
    asked = asyncio.create_task(talk.session.complete([TextAsk(prompt, SAMPLING) for prompt in prompts]))
    if wrong == "abandoned":
        async with asyncio.timeout(30):
            while talk.engine.num_running < 2:
                await asyncio.sleep(0)
        asked.cancel()
    await asyncio.wait([asked])
    async with asyncio.timeout(30):
        while talk.session.requests.num_running:
            await asyncio.sleep(0)
    assert asked.cancelled() or isinstance(asked.exception(), (EngineError, TrajectoryError))
    assert (talk.session.num_turns, talk.session.record().sequences) == (0, ())
    assert not any(root.is_taken for root in talk.session._roots.values())
    assert wrong != "too long" or not talk.engine.requests
