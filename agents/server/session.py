"""All requests of one episode: each goes on from the turn that it continues, token for token, or begins a branch."""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...envs.base import Action
from ...envs.messages import RawText
from ...errors import EngineError
from ..answer_reader import AnswerReader
from ..base import Completion, Generator, Sampling, StopReason
from ..chat import ChatAgent
from ..conversation import ChatConversation
from ..images import Images
from .answers import Answer, Read, Reader, before_stop, finish_reason
from .asks import ChatAsk, ContextLengthError, TextAsk
from .branches import SessionRecord, joined
from .canonical import Form, Json, form_of
from .history import Branch, Given, History
from .known_messages import KnownMessages
from .retries import Asked, Requests
from .stored_responses import StoredResponse
from .texts import KnownTexts
from .tree import Node, Shown, Turn, branch_of, checksum, show

_RAW = b"raw"  # the root of conversations that no template is put around


@dataclass(frozen=True)
class _Place:
    """Where a request goes on: what it shows there, and the forms that this is known by later."""

    ask: ChatAsk | TextAsk
    node: Node
    shown: Shown
    forms: list[Form]
    read: Callable[[Action, str], Read]
    branch: Branch | None


@dataclass(frozen=True)
class _Prompt:
    """What the engine is asked for one answer, and the conversation that this is recorded in."""

    place: _Place
    conversation: ChatConversation
    token_ids: NDArray[np.int32]
    images: Images
    sampling: Sampling

    def record(self, completion: Completion) -> tuple[Action, Read]:
        """Record what was sampled, and read it."""
        action = self.conversation.record(completion, self.sampling)
        return action, self.place.read(action, self.conversation.written(self.sampling))


class Session:
    """One episode's requests.

    Args:
        agent: Starts conversations.
        generator: The engine.
        sampling: How to sample what a request says nothing about; its `max_tokens` bounds every answer.
        name: For logs.
        keeps_sampling: Temperature, top_p, top_k and min_p are those of `sampling`, whatever requests say.
        timeout_s: Deadline of one answer.
    """

    def __init__(
        self,
        agent: ChatAgent,
        generator: Generator,
        sampling: Sampling,
        *,
        name: str = "session",
        keeps_sampling: bool = False,
        timeout_s: float = 600.0,
    ) -> None:
        self.agent = agent
        self.sampling = sampling
        self.name = name
        self.keeps_sampling = keeps_sampling
        self.requests: Requests[list[Answer]] = Requests()
        self.lost: Exception | None = None  # the first that cost what the engine had sampled
        self.outgrown: ContextLengthError | None = None  # the last prompt that left no room for an answer
        self.responses: dict[str, StoredResponse] = {}  # by their ids
        self.known = KnownMessages()
        self._generator = generator
        self._timeout_s = timeout_s
        self._reader = Reader()
        self._readers: dict[Form, AnswerReader] = {}  # by the tools, as the roots are
        self._roots: dict[Form, Node] = {}
        self._texts = KnownTexts()
        self._stop_reasons: list[StopReason] = []
        self._history = History()

    @property
    def max_context(self) -> int:
        """Most tokens of a prompt and its answer together."""
        return self._generator.max_context

    @property
    def num_turns(self) -> int:
        """Answers so far."""
        return len(self._stop_reasons)

    async def chat(self, ask: ChatAsk, asked: Asked | None = None) -> list[Answer]:
        """Answer a conversation.

        Args:
            ask: What is asked.
            asked: How to know the request again; by default it never is.

        Raises:
            TemplateError: The template cannot render the messages.
            ContextLengthError: They leave no room for an answer.
            EngineError: The engine failed.
            KeyReusedError, SessionClosedError: See `Requests.once`.
        """
        return await self._once(asked, [partial(self._place_of_chat, ask)])

    async def complete(self, asks: Iterable[TextAsk], asked: Asked | None = None) -> list[Answer]:
        """Go on from texts, all of one request; see `chat`."""
        return await self._once(asked, [partial(self._place_of_text, ask) for ask in asks])

    def record(self) -> SessionRecord:
        """Return what was sampled so far."""
        leaves = [leaf for root in self._roots.values() for leaf in root.leaves()]
        leaves.sort(key=lambda leaf: leaf.path()[0].number)
        conversations = [leaf.fork() for leaf in leaves]
        turns = [[turn.number for turn in leaf.path()] for leaf in leaves]
        branches = zip((each.sequences() for each in conversations), turns, strict=True)
        return SessionRecord(
            sequences=joined(branches),
            stop_reasons=tuple(self._stop_reasons),
            conversations=tuple(tuple(each.messages) for each in conversations),
            turns=tuple(map(tuple, turns)),
            history=self._history.counts,
        )

    async def close(self) -> None:
        """Cancel what runs; nothing is answered any more."""
        await self.requests.close()

    async def _once(self, asked: Asked | None, places: Sequence[Callable[[], _Place]]) -> list[Answer]:
        return await self.requests.once(asked or Asked(os.urandom(16)), lambda: self._answer(places))

    def _place_of_chat(self, ask: ChatAsk) -> _Place:
        form = self.known.form_of_tools(ask.tools)
        root = self._root(form, ask.tools)
        forms = ask.forms or [form_of(message) for message in ask.messages]
        node, held = root.find(forms)
        shown = ask.messages[held:]
        num_results = next((at for at, each in enumerate(shown) if each["role"] != "tool"), len(shown))
        shown = [*shown[:num_results], *node.problems, *shown[num_results:]]

        def read(action: Action, written: str) -> Read:
            takes_calls, stop = ask.takes_calls and bool(ask.tools), ask.sampling.stop
            reads = self._readers[form]
            return self._reader.read(action, written, reads, stop, takes_calls=takes_calls, is_parallel=ask.is_parallel)

        return _Place(
            ask, node, shown, forms[held:], read, branch_of(self._roots.values(), node, ask.messages, forms, held)
        )

    def _place_of_text(self, ask: TextAsk) -> _Place:
        node, held = self._texts.find(ask.prompt)
        rest = ask.prompt[held:]

        def read(action: Action, written: str) -> Read:
            said, stopped_by = before_stop(str(action), ask.sampling.stop)
            return Read(said, None, (), [], [], stopped_by)

        shown = RawText(rest) if isinstance(rest, str) else rest
        node = node or self._root(_RAW, None)
        return _Place(ask, node, shown, [], read, branch_of(self._roots.values(), node))

    def _root(self, form: Form, tools: list[Json] | None) -> Node:
        if form not in self._roots:
            self._readers[form] = self.agent.reader(tools or ())
            self._roots[form] = Node(None, conversation=self.agent.begin(tools))
        return self._roots[form]

    async def _answer(self, finders: Sequence[Callable[[], _Place]]) -> list[Answer]:
        """Sample, and add what came of it to the tree; all answers or none."""
        places: list[_Place] = []
        try:
            for find in finders:
                places.append(find())
                places[-1].node.num_running += 1  # the next one goes on from another, if there is one
            prompts = [prompt for place in places for prompt in self._prompts(place)]
            return self._kept(places, prompts, await self._sampled(prompts))
        finally:
            for place in places:
                place.node.num_running -= 1

    def _prompts(self, place: _Place) -> list[_Prompt]:
        base = place.node.fork()
        show(base, place.shown)
        token_ids, images = base.prompt_ids(), base.prompt_images()
        sampling = self._bounded(place.ask.sampling, len(token_ids))
        seeds = [None if sampling.seed is None else sampling.seed + index for index in range(place.ask.n)]
        twins = [base, *(base.fork() for _ in seeds[1:])]
        return [
            _Prompt(place, twin, token_ids, images, replace(sampling, seed=seed))
            for twin, seed in zip(twins, seeds, strict=True)
        ]

    async def _sampled(self, prompts: Sequence[_Prompt]) -> list[Completion]:
        name = f"{self.name}/{self.num_turns}"
        asked = [
            self._generator.generate(each.token_ids, each.sampling, each.images or None, f"{name}.{index}")
            for index, each in enumerate(prompts)
        ]
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                if len(asked) == 1:
                    return [await asked[0]]
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(each) for each in asked]
        except ExceptionGroup as errors:  # one failed, and the others were cancelled
            raise errors.exceptions[0] from None
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise EngineError(f"no answer to {name} within timeout_s={self._timeout_s}") from error
        return [task.result() for task in tasks]

    def _kept(
        self, places: Sequence[_Place], prompts: Sequence[_Prompt], completions: Sequence[Completion]
    ) -> list[Answer]:
        """Record what was sampled, and add it to the tree once all of it could be recorded."""
        try:
            recorded = [prompt.record(completion) for prompt, completion in zip(prompts, completions, strict=True)]
            for place in places:
                self._count(place)
            sampled = zip(prompts, completions, recorded, strict=True)
            return [self._add(prompt, completion, *said) for prompt, completion, said in sampled]
        except Exception as error:
            self.lost = self.lost or error
            raise

    def _count(self, place: _Place) -> None:
        ask, node = place.ask, place.node
        known = list(node.known_in(ask.messages)) if isinstance(ask, ChatAsk) else []
        self._history.add(known, is_continued=node.turn is not None, branch=place.branch, n=ask.n)

    def _add(self, prompt: _Prompt, completion: Completion, action: Action, read: Read) -> Answer:
        place, conversation, ask = prompt.place, prompt.conversation, prompt.place.ask
        number = len(self._stop_reasons)
        self._stop_reasons.append(completion.stop_reason)
        turn = Turn(number, place.shown, checksum(prompt.token_ids, prompt.images), completion, prompt.sampling)
        child = Node(turn, place.node, read.problems, conversation)
        if isinstance(ask, ChatAsk):
            child.given = Given(read.content, read.thought, read.calls, str(action))
            child.num_messages = len(ask.messages) + 1
        place.node.add(child, place.forms, read.forms)
        if not prompt.images:  # token ids alone say nothing of them
            self._texts.add(conversation.prompt_ids(), child)
        if isinstance(ask, TextAsk) and isinstance(ask.prompt, str):
            self._texts.add_told(ask.prompt, read, action.raw, conversation.written(prompt.sampling), child)
        return Answer(
            content=read.content,
            thought=read.thought,
            calls=read.calls,
            finish_reason=finish_reason(completion, read.calls),
            num_prompt=len(prompt.token_ids),
            prompt_ids=prompt.token_ids if ask.wants_ids else None,
            completion=completion,
            turn=number,
            stop=read.stop,
        )

    def _bounded(self, sampling: Sampling, num_prompt: int) -> Sampling:
        room = self.max_context - num_prompt
        if room < 1:
            self.outgrown = ContextLengthError(
                f"the prompt has {num_prompt} tokens and leaves no room for an answer in a context of "
                f"{self.max_context}; shorten the messages"
            )
            raise self.outgrown
        return replace(sampling, max_tokens=min(sampling.max_tokens, self.sampling.max_tokens, room))
