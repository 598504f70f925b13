"""`POST /v1/responses`: OpenAI's newer form, with histories that go on from an id."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .answers import Answer, AnswerCall
from .endpoints import Outcome, asked_of, chat_ask, sampling_of
from .kept import Kept
from .replies import Json, chat_logprobs, pieces
from .responses_wire import NamedTool, ResponsesRequest, check_outputs
from .session import Session
from .stored_responses import StoredResponse, stored
from .wire import read


async def responses(session: Session, body: bytes, headers: Mapping[str, str]) -> Outcome:
    """Answer a request of the Responses API."""
    request = read(ResponsesRequest, body)
    tools, choice, is_parallel = request.named_tools(), request.call_choice(), request.parallel_tool_calls is not False
    schemas = [tool.schema for tool in tools.values()] or None
    sampling = sampling_of(session, request, request.max_output_tokens, (), num_top=request.top_logprobs)
    before, new = _before(session, request.previous_response_id), request.chat()
    history = [*(before.values() if before else ()), *new]
    check_outputs(history)
    instructions = [] if request.instructions is None else [{"role": "system", "content": request.instructions}]
    said = session.known.in_form([*instructions, *history])
    ask = chat_ask(session, said, sampling, schemas, choice, is_parallel=is_parallel)
    (answer,) = await session.chat(ask, asked_of(body, headers))
    end = f"{session.name}_{answer.turn}"
    codec, names_ids = session.agent.codec, bool(request.return_tokens_as_token_ids)
    logprobs = chat_logprobs(answer.completion, codec, names_ids=names_ids) if request.gives_logprobs else []
    reply = ResponseReply(f"resp_{end}", int(time.time()), request, tools, answer, logprobs)
    whole = reply.whole()
    if request.store is not False:
        kept = session.known.kept
        whole |= {name: kept.shared(whole[name]) for name in ("instructions", "tools")}
        said_and_answered = kept.add([*new, _said(answer)], before)
        session.responses[reply.id] = StoredResponse(whole, said_and_answered, kept.add(request.items()))
    return Outcome(events=reply.events(whole)) if request.stream else Outcome(whole)


@dataclass(frozen=True)
class ResponseReply:
    """One response.

    Attributes:
        id: Also tells the session's number of the answer.
        created: Seconds since 1970.
        request: What is answered.
        tools: By the names that the model calls them.
        answer: What it says.
        logprobs: Of each sampled token, where the client wants them.
    """

    id: str
    created: int
    request: ResponsesRequest
    tools: dict[str, NamedTool]
    answer: Answer
    logprobs: list[Json]

    def whole(self) -> Json:
        """Return a `response`."""
        is_cut = self.answer.finish_reason == "length"
        return {
            **self._head(),
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": list(self._items()),
            "usage": self._usage(),
        }

    def events(self, whole: Json) -> Iterator[bytes]:
        """Yield the events of a stream that ends in this."""
        begun = {**self._head(), "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
        told: list[Json] = [{"type": f"response.{state}", "response": begun} for state in ("created", "in_progress")]
        for index, item in enumerate(whole["output"]):
            told += ({**event, "output_index": index} for event in _item_events(item))
        told.append({"type": f"response.{whole['status']}", "response": whole})
        for number, event in enumerate(told):
            data = json.dumps({**event, "sequence_number": number}, ensure_ascii=False, separators=(",", ":"))
            yield f"event: {event['type']}\ndata: {data}\n\n".encode()

    def _head(self) -> Json:
        request = self.request
        functions = [
            {"type": "function", "strict": False, **tool.schema["function"], "name": tool.name}
            for tool in self.tools.values()
            if not tool.is_custom and tool.namespace is None
        ]
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "model": request.model or "",
            "error": None,
            "instructions": request.instructions,
            "metadata": request.metadata or {},
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "text": {"format": request.format_given()},
            "tool_choice": request.tool_choice or "auto",
            "top_logprobs": request.top_logprobs,
            "tools": functions,
        }

    def _items(self) -> Iterator[Json]:
        answer, end = self.answer, f"{self.id.removeprefix('resp_')}"
        status = "incomplete" if answer.finish_reason == "length" else "completed"
        if answer.thought is not None:
            thought = [{"type": "reasoning_text", "text": answer.thought}]
            yield {"id": f"rs_{end}", "type": "reasoning", "summary": [], "content": thought, "status": status}
        if answer.content or not answer.calls:
            logprobs = [
                {**_with_bytes(each), "top_logprobs": list(map(_with_bytes, each["top_logprobs"]))}
                for each in self.logprobs
            ]
            said = [{"type": "output_text", "text": answer.content, "annotations": [], "logprobs": logprobs}]
            yield {"id": f"msg_{end}", "type": "message", "role": "assistant", "content": said, "status": status}
        for index, call in enumerate(answer.calls):
            yield self._call(call, f"fc_{end}_{index}")

    def _call(self, call: AnswerCall, item_id: str) -> Json:
        tool = self.tools.get(call.name)
        name = tool.name if tool else call.name
        if tool and tool.is_custom:
            text = json.loads(call.arguments).get("input", "")
            told = {"type": "custom_tool_call", "input": text if isinstance(text, str) else json.dumps(text)}
        else:
            told = {"type": "function_call", "arguments": call.arguments, "status": "completed"}
        if tool and tool.namespace:
            told["namespace"] = tool.namespace
        return {"id": item_id, "call_id": call.id, "name": name, **told}

    def _usage(self) -> Json:
        num_prompt, num_sampled = self.answer.num_prompt, len(self.answer.completion.token_ids)
        return {
            "input_tokens": num_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": num_sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": num_prompt + num_sampled,
        }


def _before(session: Session, response_id: str | None) -> Kept | None:
    return None if response_id is None else stored(session.responses, response_id, "previous_response_id").history


def _with_bytes(entry: Json) -> Json:
    """Return a token's entry with a list of bytes, as this API's types have it, also where they are not known."""
    return {**entry, "bytes": entry["bytes"] or []}


def _said(answer: Answer) -> Json:
    calls = [{"id": call.id, "function": {"name": call.name, "arguments": call.arguments}} for call in answer.calls]
    return {"role": "assistant", "content": answer.content, "tool_calls": calls, "reasoning_content": answer.thought}


def _item_events(item: Json) -> Iterator[Json]:
    """Yield how an item comes, piece by piece."""
    kind, named = item["type"], {"item_id": item["id"]}
    if kind in ("function_call", "custom_tool_call"):
        field, event = (
            ("arguments", "response.function_call_arguments")
            if kind == "function_call"
            else ("input", "response.custom_tool_call_input")
        )
        yield {"type": "response.output_item.added", "item": {**item, field: ""}}
        yield from ({"type": f"{event}.delta", **named, "delta": piece} for piece in pieces(item[field]))
        done = {"name": item["name"]} if kind == "function_call" else {}
        yield {"type": f"{event}.done", **named, field: item[field], **done}
    else:
        yield {"type": "response.output_item.added", "item": {**item, "content": [], "status": "in_progress"}}
        (part,) = item["content"]
        event = f"response.{part['type']}"
        extras: Json = {"logprobs": []} if kind == "message" else {}
        at = {**named, "content_index": 0}
        yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
        yield from ({"type": f"{event}.delta", **at, "delta": piece, **extras} for piece in pieces(part["text"]))
        yield {"type": f"{event}.done", **at, "text": part["text"], **extras}
        yield {"type": "response.content_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "item": item}
