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
        names_ids: Whether tokens in logprobs are named by their ids.
    """

    id: str
    created: int
    model: str
    answers: Sequence[Answer]
    num_prompt: int
    codec: Codec
    gives_logprobs: bool
    gives_ids: bool
    names_ids: bool = False

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
            prompt_ids = {} if index else self._prompt_ids()
            yield {**head, "choices": [_chat_choice(index, first, **self._chat_extras(answer))], **prompt_ids}
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
            told = chat_logprobs(answer.completion, self.codec, names_ids=self.names_ids)
            extras["logprobs"] = {"content": told, "refusal": None}
        if self.gives_ids:
            extras["token_ids"] = answer.completion.token_ids.tolist()
        return extras

    def _prompt_ids(self) -> Json:
        ids = self.answers[0].prompt_ids
        return {"prompt_token_ids": ids.tolist()} if self.gives_ids and ids is not None else {}

    def _text_choice(self, index: int, answer: Answer) -> Json:
        choice: Json = {"index": index, "text": answer.content, "finish_reason": answer.finish_reason, "logprobs": None}
        if self.gives_logprobs:
            ids = answer.completion.token_ids
            tokens = _texts(ids, self.codec)
            choice["logprobs"] = {
                "tokens": _names(ids) if self.names_ids else tokens,
                "token_logprobs": _logprobs(answer.completion),
                "top_logprobs": self._text_top(answer),
                "text_offset": [0, *np.cumsum([len(token) for token in tokens[:-1]]).tolist()] if tokens else [],
            }
        if self.gives_ids:
            prompt_ids = answer.prompt_ids
            choice["token_ids"] = answer.completion.token_ids.tolist()
            choice["prompt_token_ids"] = None if prompt_ids is None else prompt_ids.tolist()
        return choice

    def _text_top(self, answer: Answer) -> list[dict[str, float]] | None:
        if answer.completion.top is None:
            return None
        tops = _top(answer.completion, self.codec, names_ids=self.names_ids)
        return [{each["token"]: each["logprob"] for each in place} for place in tops]


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


def chat_logprobs(completion: Completion, codec: Codec, *, names_ids: bool = False) -> list[Json]:
    """Return one entry for each sampled token, those included that no text shows; with the likeliest, where asked.

    Args:
        completion: What was sampled.
        codec: The model's tokenizer.
        names_ids: Name tokens by their ids, as `token_id:5`, which tells apart those whose text is the same.
    """
    entries = _entries(completion.token_ids, _logprobs(completion), codec, names_ids=names_ids)
    tops = _top(completion, codec, names_ids=names_ids)
    return [{**entry, "top_logprobs": top} for entry, top in zip(entries, tops, strict=True)]


def _top(completion: Completion, codec: Codec, *, names_ids: bool) -> list[list[Json]]:
    top = completion.top
    if top is None:
        return [[] for _ in completion.token_ids]
    return [
        _entries(ids_K, [max(float(each), _NEVER) for each in row_K], codec, names_ids=names_ids)
        for ids_K, row_K in zip(top.token_ids, top.logprobs, strict=True)
    ]


def _entries(ids: NDArray[np.int32], logprobs: Sequence[float], codec: Codec, *, names_ids: bool) -> list[Json]:
    texts = _texts(ids, codec)
    return [
        {"token": name, "logprob": logprob, "bytes": _bytes(text)}
        for name, text, logprob in zip(_names(ids) if names_ids else texts, texts, logprobs, strict=True)
    ]


def _names(ids: NDArray[np.int32]) -> list[str]:
    return [f"token_id:{each}" for each in ids.tolist()]


def _texts(ids: NDArray[np.int32], codec: Codec) -> list[str]:
    return [codec.decode(ids[place : place + 1]) for place in range(len(ids))]


def _logprobs(completion: Completion) -> list[float]:
    assert completion.logprobs is not None  # it was recorded
    return [float(each) for each in completion.logprobs]


def _bytes(token: str) -> list[int] | None:
    """Return a token's bytes; None where it is a part of a character, and its text does not tell them."""
    return None if "\ufffd" in token else list(token.encode())
