"""Answers as Anthropic's clients read them: whole, or as the events of a stream."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from .answers import Answer
from .api_errors import ApiError
from .replies import Json, pieces

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {401: "authentication_error", 404: "not_found_error", 413: "request_too_large", 503: "overloaded_error"}


@dataclass(frozen=True)
class AnthropicReply:
    """One response.

    Attributes:
        id: Also tells the session's number of the answer.
        model: As the client called it.
        answer: What it says.
    """

    id: str
    model: str
    answer: Answer

    def whole(self) -> Json:
        """Return a `message`."""
        return {**self._head(), "content": self._blocks(), **self._end(), "usage": self._usage()}

    def events(self) -> Iterator[bytes]:
        """Yield the events of a stream."""
        usage = {**self._usage(), "output_tokens": 0}
        begun = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=begun)
        for index, block in enumerate(self._blocks()):
            begin, deltas = _in_parts(block)
            yield _event("content_block_start", index=index, content_block=begin)
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        yield _event("message_delta", delta=self._end(), usage=self._usage())
        yield _event("message_stop")

    def _head(self) -> Json:
        return {"id": self.id, "type": "message", "role": "assistant", "model": self.model}

    def _blocks(self) -> list[Json]:
        answer, blocks = self.answer, []
        if answer.thought is not None:
            blocks.append({"type": "thinking", "thinking": answer.thought, "signature": ""})
        if answer.content or not answer.calls:
            blocks.append({"type": "text", "text": answer.content})
        uses = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            for call in answer.calls
        ]
        return [*blocks, *uses]

    def _end(self) -> Json:
        answer = self.answer
        is_stopped = answer.stop is not None and answer.finish_reason == "stop"
        reason = "stop_sequence" if is_stopped else _REASONS[answer.finish_reason]
        return {"stop_reason": reason, "stop_sequence": answer.stop if is_stopped else None}

    def _usage(self) -> Json:
        return {"input_tokens": self.answer.num_prompt, "output_tokens": len(self.answer.completion.token_ids)}


def anthropic_error(error: ApiError) -> Json:
    """Return the body of a refusal."""
    kind = _ERRORS.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def _in_parts(block: Json) -> tuple[Json, list[Json]]:
    """Return a block as it begins, and what is added to it piece by piece."""
    if block["type"] == "tool_use":
        said = json.dumps(block["input"], ensure_ascii=False)
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": each} for each in pieces(said)]
    key = block["type"]  # the text stands under the block's own type
    return {**block, key: ""}, [{"type": f"{key}_delta", key: each} for each in pieces(block[key])]


def _event(kind: str, **told: object) -> bytes:
    data = json.dumps({"type": kind, **told}, ensure_ascii=False, separators=(",", ":"))
    return f"event: {kind}\ndata: {data}\n\n".encode()
