"""What each path of the OpenAI API does with a request's body."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...envs.messages import RawText
from ..base import Sampling
from ..chat import ChatAgent
from ..template_kwargs import OPTION, differing
from .api_errors import ApiError
from .asks import ChatAsk, TextAsk
from .canonical import chat_messages
from .known_messages import SentMessages
from .reading import read_with_history
from .replies import Json, Reply, as_events
from .retries import Asked
from .session import Session
from .shaping import CallChoice, in_chat, shape_of
from .wire import UNSUPPORTED, ChatRequest, CompletionRequest, DetokenizeRequest, Generation, TokenizeRequest, read

Prompt = TypeVar("Prompt", str, NDArray[np.int32], str | NDArray[np.int32])


@dataclass(frozen=True)
class Outcome:
    """A response: one object, or the events of a stream."""

    whole: Json | None = None
    events: Iterator[bytes] | None = None


async def chat_completions(session: Session, body: bytes, headers: Mapping[str, str]) -> Outcome:
    """`POST /v1/chat/completions`."""
    request, history = read_with_history(ChatRequest, body, session.known, _as_sent)
    tools = [tool.to_schema() for tool in request.tools] if request.tools else None
    choice, is_parallel = CallChoice.of(request.tool_choice), request.parallel_tool_calls is not False
    max_tokens = request.max_completion_tokens or request.max_tokens
    sampling = sampling_of(session, request, max_tokens, request.stop_strings, num_top=request.top_logprobs)
    ask = chat_ask(session, history, sampling, tools, choice, is_parallel=is_parallel)
    ask = replace(ask, n=request.n or 1, wants_ids=bool(request.return_token_ids))
    answers = await session.chat(ask, asked_of(body, headers))
    reply = Reply(
        id=f"chatcmpl-{session.name}-{answers[0].turn}",
        created=int(time.time()),
        model=request.model or "",
        answers=answers,
        num_prompt=answers[0].num_prompt,
        codec=session.agent.codec,
        gives_logprobs=bool(request.logprobs),
        names_ids=bool(request.return_tokens_as_token_ids),
        gives_ids=ask.wants_ids,
    )
    if request.stream:
        return Outcome(events=as_events(reply.chat_chunks(includes_usage=request.includes_usage)))
    return Outcome(reply.chat())


async def completions(session: Session, body: bytes, headers: Mapping[str, str]) -> Outcome:
    """`POST /v1/completions`; several prompts are all answered, or none."""
    request = read(CompletionRequest, body)
    codec, n = session.agent.codec, request.n or 1
    sampling = sampling_of(session, request, request.max_tokens, request.stop_strings, num_top=request.logprobs)
    wants_ids = bool(request.return_token_ids)
    asks = [TextAsk(_in_vocabulary(prompt, codec.num_tokens), sampling, n, wants_ids) for prompt in _prompts(request)]
    answers = await session.complete(asks, asked_of(body, headers))
    reply = Reply(
        id=f"cmpl-{session.name}-{answers[0].turn}",
        created=int(time.time()),
        model=request.model or "",
        answers=answers,
        num_prompt=sum(answer.num_prompt for answer in answers[::n]),
        codec=codec,
        gives_logprobs=request.logprobs is not None,
        names_ids=bool(request.return_tokens_as_token_ids),
        gives_ids=wants_ids,
    )
    if request.stream:
        return Outcome(events=as_events(reply.text_chunks(includes_usage=request.includes_usage)))
    return Outcome(reply.text())


def tokenize(agent: ChatAgent, body: bytes) -> Json:
    """`POST /tokenize`: what a prompt or a conversation begins with; no special token is added."""
    request = read(TokenizeRequest, body)
    check_template(agent, request)
    tools = [tool.to_schema() for tool in request.tools] if request.tools else None
    conversation = agent.begin(tools)
    if request.prompt is not None:
        conversation.observe(RawText(request.prompt))
    else:
        messages = [message.model_dump(exclude_none=True) for message in request.messages or []]
        conversation.observe(chat_messages(messages), is_last=not request.add_generation_prompt)
    ids = conversation.prompt_ids()
    strings = {"token_strs": agent.codec.names(ids)} if request.return_token_strs else {}
    return {"count": len(ids), "tokens": ids.tolist(), **strings}


def detokenize(agent: ChatAgent, body: bytes) -> Json:
    """`POST /detokenize`: the text of token ids, special ones included."""
    request = read(DetokenizeRequest, body)
    ids = _in_vocabulary(np.asarray(request.tokens, np.int32), agent.codec.num_tokens)
    return {"prompt": agent.codec.decode(ids)}


def models(model: str) -> Json:
    """`GET /v1/models`."""
    return {"object": "list", "data": [{"id": model, "object": "model", "created": 0, "owned_by": "turngym"}]}


def chat_ask(
    session: Session,
    said: SentMessages,
    sampling: Sampling,
    tools: list[Json] | None,
    choice: CallChoice,
    *,
    is_parallel: bool,
) -> ChatAsk:
    """Return what a session is asked: one answer to messages, of whichever API.

    Args:
        session: Whose request it is.
        said: The whole history.
        sampling: As `sampling_of` returns it.
        tools: Their schemas.
        choice: Which of them may or must be called.
        is_parallel: Whether several may be called at once.
    """
    return ChatAsk(
        messages=said.messages,
        forms=said.forms,
        sampling=in_chat(session.agent, sampling, tools, choice, is_parallel=is_parallel),
        tools=tools,
        takes_calls=choice.takes_calls,
        is_parallel=is_parallel,
    )


def sampling_of(
    session: Session, request: Generation, max_tokens: int | None, stop: Sequence[str], *, num_top: int | None = None
) -> Sampling:
    """Return how to sample: what the request says, and for the rest what the session does.

    Args:
        session: Whose request it is.
        request: The client's.
        max_tokens: What it says of the length.
        stop: What ends the answer.
        num_top: Of how many tokens at each place it wants the logprobs.

    Raises:
        ApiError: It wants another shape than there can be, or another prompt than the run makes.
    """
    check_template(session.agent, request)
    base = session.sampling
    num_tokens = session.agent.codec.num_tokens
    names = () if session.keeps_sampling else ("temperature", "top_p", "top_k", "min_p")
    given = {name: value for name in names if (value := getattr(request, name)) is not None}
    return replace(
        base,
        max_tokens=base.max_tokens if max_tokens is None else max_tokens,
        stop=(*base.stop, *stop),
        stop_token_ids=(*base.stop_token_ids, *(request.stop_token_ids or ())),
        seed=base.seed if request.seed is None else request.seed,
        shape=shape_of(request, base.shape, num_tokens, keeps_sampling=session.keeps_sampling),
        num_top_logprobs=num_top or 0,
        **given,
    )


def check_template(agent: ChatAgent, request: Generation | TokenizeRequest) -> None:
    """Refuse a prompt made otherwise than the run makes all of its prompts.

    Raises:
        ApiError: The request wants one; names the option.
    """
    if names := differing(request.chat_template_kwargs or {}, agent.template_kwargs):
        raise ApiError(
            f"chat_template_kwargs: {names[0]!r} differs from what all prompts of this run are made with, "
            f"{json.dumps(agent.template_kwargs)}; {OPTION} sets it for all of them",
            param="chat_template_kwargs",
            code=UNSUPPORTED,
        )


def asked_of(body: bytes, headers: Mapping[str, str]) -> Asked:
    """Return how to know a request again."""
    count = headers.get("x-stainless-retry-count", "0")
    is_retry = count.isdecimal() and count.strip("0") != ""
    return Asked(blake2b(body, digest_size=16).digest(), headers.get("idempotency-key") or None, is_retry)


def _as_sent(request: ChatRequest) -> list[list[Json]]:
    return [[message.model_dump(exclude_none=True)] for message in request.messages]


def _prompts(request: CompletionRequest) -> list[str | NDArray[np.int32]]:
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    if all(isinstance(each, int) for each in prompt):
        return [np.asarray(prompt, np.int32)]
    return [each if isinstance(each, str) else np.asarray(each, np.int32) for each in prompt]


def _in_vocabulary(prompt: Prompt, num_tokens: int) -> Prompt:
    if not isinstance(prompt, str) and len(prompt) and int(prompt.max()) >= num_tokens:
        raise ApiError(f"token id {int(prompt.max())} is none of the model's {num_tokens}")
    return prompt
