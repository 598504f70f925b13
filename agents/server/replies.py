"""Answers as OpenAI's clients read them: whole, or as the chunks of a stream."""

# T tokens, K likeliest

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..base import Completion
from ..tokenizer import Codec
from .answers import Answer, AnswerCall

Json = dict[str, Any]  # an object of JSON
_PIECE = 32  # characters
_NEVER = -9999.0  # OpenAI's number for what could not come; JSON has no infinity


@dataclass(frozen=True)
class Reply:
    """What all parts of one response say.

    Attributes:
        id: Also tells the session's number of the first answer.
        created: Seconds since 1970.
        model: As the client called it.
        answers: The choices.
        num_prompt: Tokens of the prompt, or of all prompts.
        codec: The model's tokenizer.
        gives_logprobs: Whether the client wants them.
        gives_ids: Whether it wants token ids.
    """

    id: str
    created: int
    model: str
    answers: Sequence[Answer]
    num_prompt: int
    codec: Codec
    gives_logprobs: bool
    gives_ids: bool

    def chat(self) -> Json:
        """Return a `chat.completion`."""
        choices = [
            {
                "index": index,
                "message": _message(answer),
                "finish_reason": answer.finish_reason,
                **self._chat_extras(answer),
            }
            for index, answer in enumerate(self.answers)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": self.usage(), **self._prompt_ids()}

    def chat_chunks(self, *, includes_usage: bool) -> Iterator[Json]:
        """Yield the chunks of a `chat.completion.chunk` stream."""
        head = self._head("chat.completion.chunk")
        for index, answer in enumerate(self.answers):
            first = {"role": "assistant", "content": ""}
            yield {**head, "choices": [_chat_choice(index, first, **self._chat_extras(answer))]}
            for delta in _deltas(answer):
                yield {**head, "choices": [_chat_choice(index, delta)]}
            yield {**head, "choices": [_chat_choice(index, {}, answer.finish_reason)]}
        if includes_usage:
            yield {**head, "choices": [], "usage": self.usage()}

    def text(self) -> Json:
        """Return a `text_completion`."""
        choices = [self._text_choice(index, answer) for index, answer in enumerate(self.answers)]
        return {**self._head("text_completion"), "choices": choices, "usage": self.usage()}

    def text_chunks(self, *, includes_usage: bool) -> Iterator[Json]:
        """Yield the chunks of a `text_completion` stream."""
        head = self._head("text_completion")
        for index, answer in enumerate(self.answers):
            for piece in pieces(answer.content):
                yield {**head, "choices": [{"index": index, "text": piece, "finish_reason": None, "logprobs": None}]}
            yield {**head, "choices": [{**self._text_choice(index, answer), "text": ""}]}
        if includes_usage:
            yield {**head, "choices": [], "usage": self.usage()}

    def usage(self) -> Json:
        """Return what was used."""
        num_sampled = sum(len(answer.completion.token_ids) for answer in self.answers)
        return {
            "prompt_tokens": self.num_prompt,
            "completion_tokens": num_sampled,
            "total_tokens": self.num_prompt + num_sampled,
        }

    def _head(self, kind: str) -> Json:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _chat_extras(self, answer: Answer) -> Json:
        extras: Json = {"logprobs": None}
        if self.gives_logprobs:
            extras["logprobs"] = {"content": chat_logprobs(answer.completion, self.codec), "refusal": None}
        if self.gives_ids:
            extras["token_ids"] = answer.completion.token_ids.tolist()
        return extras

    def _prompt_ids(self) -> Json:
        ids = self.answers[0].prompt_ids
        return {"prompt_token_ids": ids.tolist()} if self.gives_ids and ids is not None else {}

    def _text_choice(self, index: int, answer: Answer) -> Json:
        choice: Json = {"index": index, "text": answer.content, "finish_reason": answer.finish_reason, "logprobs": None}
        if self.gives_logprobs:
            tokens = self._tokens(answer)
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": _logprobs(answer.completion),
                "top_logprobs": self._text_top(answer),
                "text_offset": [0, *np.cumsum([len(token) for token in tokens[:-1]]).tolist()] if tokens else [],
            }
        if self.gives_ids:
            ids = answer.prompt_ids
            choice["token_ids"] = answer.completion.token_ids.tolist()
            choice["prompt_token_ids"] = None if ids is None else ids.tolist()
        return choice

    def _text_top(self, answer: Answer) -> list[dict[str, float]] | None:
        if answer.completion.top is None:
            return None
        return [{each["token"]: each["logprob"] for each in place} for place in _top(answer.completion, self.codec)]

    def _tokens(self, answer: Answer) -> list[str]:
        return _texts(answer.completion.token_ids, self.codec)


def as_events(chunks: Iterator[Json]) -> Iterator[bytes]:
    """Yield chunks as server-sent events, and their end."""
    for chunk in chunks:
        yield b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _message(answer: Answer) -> Json:
    message: Json = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.thought is not None:
        message["reasoning_content"] = answer.thought
    if answer.calls:
        message["content"] = answer.content or None
        message["tool_calls"] = [_call(call) for call in answer.calls]
    return message


def _call(call: AnswerCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _chat_choice(index: int, delta: Json, reason: str | None = None, **extras: Any) -> Json:
    return {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None, **extras}


def _deltas(answer: Answer) -> Iterator[Json]:
    yield from ({"reasoning_content": piece} for piece in pieces(answer.thought or ""))
    yield from ({"content": piece} for piece in pieces(answer.content))
    for index, call in enumerate(answer.calls):
        begin = {"index": index, **_call(call), "function": {"name": call.name, "arguments": ""}}
        yield {"tool_calls": [begin]}
        for piece in pieces(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def pieces(text: str) -> Iterator[str]:
    """Yield a text as a stream gives it."""
    return (text[start : start + _PIECE] for start in range(0, len(text), _PIECE))


def chat_logprobs(completion: Completion, codec: Codec) -> list[Json]:
    """Return one entry for each sampled token, those included that no text shows; with the likeliest, where asked."""
    tokens, tops = _texts(completion.token_ids, codec), _top(completion, codec)
    return [
        {**_entry(token, logprob), "top_logprobs": top}
        for token, logprob, top in zip(tokens, _logprobs(completion), tops, strict=True)
    ]


def _top(completion: Completion, codec: Codec) -> list[list[Json]]:
    top = completion.top
    if top is None:
        return [[] for _ in completion.token_ids]
    return [
        [_entry(token, max(float(logprob), _NEVER)) for token, logprob in zip(_texts(ids_K, codec), row_K, strict=True)]
        for ids_K, row_K in zip(top.token_ids, top.logprobs, strict=True)
    ]


def _entry(token: str, logprob: float) -> Json:
    return {"token": token, "logprob": logprob, "bytes": _bytes(token)}


def _texts(ids: NDArray[np.int32], codec: Codec) -> list[str]:
    return [codec.decode(ids[place : place + 1]) for place in range(len(ids))]


def _logprobs(completion: Completion) -> list[float]:
    assert completion.logprobs is not None  # it was recorded
    return [float(each) for each in completion.logprobs]


def _bytes(token: str) -> list[int] | None:
    """Return a token's bytes; None where it is a part of a character, and its text does not tell them."""
    return None if "\ufffd" in token else list(token.encode())
