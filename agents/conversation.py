"""One conversation, token for token: sampled tokens stay as they were sampled, and only what is new is tokenised."""

import copy
from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..envs.base import Action
from ..envs.images import Image
from ..envs.messages import Message, RawText
from ..errors import TemplateError
from .base import Completion, Sampling, StopReason
from .images import Images
from .picture_text import Encoded, PictureText, raw_text_with_images, with_images
from .prefix import NOTHING_SAID, Reading, end_of_answer, why_rewritten
from .sequence import BEFORE_FIRST_TURN, Piece, Sequence, SequenceBuilder, common_length
from .template import ChatMessage, ChatTemplate, images_of, plain_text, text_of
from .tokenizer import Codec

# The end of a turn is up to this many special tokens (Cohere's is two).
MOST_END_TOKENS = 3


class Answer(NamedTuple):
    """A completion: its tokens, how many special ones it ends with, and the text before those."""

    token_ids: NDArray[np.int32]
    num_end: int
    body: str


class ChatConversation:
    """One episode's context, token for token; see `agents.chat`."""

    def __init__(self, codec: Codec, template: ChatTemplate | None, pictures: PictureText | None = None) -> None:
        self._codec = codec
        self._template = template
        self._pictures = pictures  # None where the model reads text only
        # A template that shows the time must not change its mind at midnight.
        self._clock = datetime.now().strftime if template and template.has_clock else None
        self._messages: list[Message] = []
        self._chat: list[ChatMessage] = []  # the same, in the form the template reads
        # The template's own text of all that was shown and said, up to the last observation; None
        # where raw text came between, which no template can render.
        self._view: str | None = "" if template else None
        self._images: tuple[Image, ...] = ()  # that the view has places for
        self._answer: Answer | None = None  # the last completion, if nothing answered it yet
        self._turn = BEFORE_FIRST_TURN
        self._builder = SequenceBuilder()
        self._ends: list[int] = []  # where the text of each of its pieces ends in the view; -1 where that is not known
        self._has_actions = False  # whether anything was sampled in it
        self._earlier: tuple[SequenceBuilder, ...] = ()
        self._forks: tuple[str, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """The episode as chat so far, assistant turns decoded from their tokens."""
        return list(self._messages)

    @property
    def forks(self) -> tuple[str, ...]:
        """Why each sequence after the first began."""
        return self._forks

    def observe(self, observation: list[Message] | RawText, *, is_last: bool = False) -> None:
        """Append what the environment said; only this is tokenised.

        Args:
            observation: New messages, or raw text.
            is_last: No completion follows, so no generation prompt is added; a rewritten history
                no longer matters, and opens no sequence that nobody would write in.

        Raises:
            TemplateError: The template cannot render the messages.
        """
        if isinstance(observation, RawText):
            self._add_raw(observation)
        elif self._template is None:
            self._add_raw(plain_text(observation))
        elif not is_last or any(message.get("content") for message in observation):
            observation = [with_images(message, self._pictures) for message in observation]
            new = [self._template.prepare(message) for message in observation]
            images = tuple(image for message in observation for image in images_of(message))
            if self._view is None:
                self._add_unseen(self._template, new, images, is_last)
            else:
                self._add_seen(self._template, self._view, new, images, is_last)
            self._messages.extend(observation)

    def observe_tokens(self, token_ids: NDArray[np.int32]) -> None:
        """Append tokens as they are, as `observe` does with raw text."""
        if self._pictures is not None:
            self._pictures.check_text(token_ids)
        self._append(token_ids)
        self._view = None
        self._messages.append(Message(role="user", content=self._codec.decode(token_ids)))

    def prompt_ids(self) -> NDArray[np.int32]:
        """Token ids for the next completion, generation prompt included."""
        return self._builder.token_ids()

    def prompt_images(self) -> Images:
        """The images among the prompt's ids."""
        return self._builder.images()

    def record(self, completion: Completion, sampling: Sampling, *, with_query: bool = False) -> Action:
        """Append what was sampled and return it as the environment's action.

        Raises:
            ImageError: The model wrote a place for an image.
        """
        if self._pictures is not None and self._builder.images():
            self._pictures.check_text(completion.token_ids)
        self._builder.add_completion(completion, sampling, self._turn + 1)
        self._turn += 1
        ids = completion.token_ids
        if self._answer is not None:
            self._view = None  # two completions on end: the model went on by itself, which is no chat
        self._has_actions = self._has_actions or len(ids) > 0
        self._ends.append(-1)
        said = self._codec.said(ids, MOST_END_TOKENS)
        self._answer = Answer(ids, said.num_end, said.body)
        self._messages.append(Message(role="assistant", content=said.body))
        return Action(
            said.plain,
            raw=said.raw,
            query=self._codec.decode(self._builder.token_ids()) if with_query else None,
            is_cut=completion.stop_reason is StopReason.LENGTH,
        )

    def written(self, sampling: Sampling) -> str:
        """Return the answer that was recorded last with its special tokens, the end of the turn left out."""
        assert self._answer is not None  # `record` comes first
        return self._answer.body

    def fork(self) -> "ChatConversation":
        """Return a conversation that goes on from here, independent of this one."""
        twin = copy.copy(self)
        twin._messages, twin._chat = list(self._messages), list(self._chat)
        twin._builder = self._builder.fork()
        twin._ends = list(self._ends)
        return twin

    def sequences(self) -> tuple[Sequence, ...]:
        """All sequences so far; each sampled token is an action in exactly one."""
        return tuple(builder.build() for builder in (*self._earlier, self._builder))

    def _add_raw(self, text: str) -> None:
        if not text:
            return
        images: Images = ()
        if isinstance(text, RawText) and text.images:
            ids, images = raw_text_with_images(text, self._pictures)
        else:
            ids = self._codec.encode(text)
            if self._pictures is not None:
                self._pictures.check_text(ids)
        self._append(ids, images=images)
        self._view = None
        self._messages.append(Message(role="user", content=text))

    def _add_unseen(
        self, template: ChatTemplate, new: list[ChatMessage], images: tuple[Image, ...], is_last: bool
    ) -> None:
        """Append messages where the template cannot be asked about what came before."""
        text = template.after_answer(new, add_generation_prompt=not is_last)
        if self._answer is not None:
            ends = [reading.end for reading in self._readings(template)]
            text = text.removeprefix(next((end for end in ends if text.startswith(end)), ""))
        ids, placed = self._encode_behind(self._builder.pieces, text, 0, images)
        self._append(ids, images=placed)
        self._view = None

    def _add_seen(
        self, template: ChatTemplate, view: str, new: list[ChatMessage], images: tuple[Image, ...], is_last: bool
    ) -> None:
        """Append messages if the template keeps what came before, else fork."""
        images = self._images + images
        rewritten: tuple[Reading, str] | None = None
        refusal: TemplateError | None = None
        for reading in self._readings(template):
            chat = [*self._chat, *reading.messages, *new]
            try:
                text = template.render(chat, add_generation_prompt=not is_last, strftime_now=self._clock)
            except TemplateError as error:
                refusal = refusal or error
                continue
            stop = end_of_answer(text, view, reading)
            if stop is not None:
                if self._ends or images:
                    ids, placed = self._encode_behind(self._builder.pieces, text, stop, images)
                else:
                    ids, placed = self._encode_first(text, new), ()
                if self._answer is not None:
                    self._ends[-1] = stop
                self._append(ids, len(text), placed)
                self._chat, self._view, self._images = chat, text, images
                return
            rewritten = rewritten or (reading, text)
        if rewritten:
            reading, text = rewritten
            if not is_last:
                self._fork(view, text, images, why_rewritten(text, view, reading, template.shape))
            self._chat = [*self._chat, *reading.messages, *new]
            self._view, self._images = text, images
        elif refusal and self._answer is None:
            raise refusal
        else:
            # The model wrote what the template takes from nobody; if the new messages are the
            # ones refused, this raises.
            self._add_unseen(template, new, images[len(self._images) :], is_last)

    def _readings(self, template: ChatTemplate) -> Iterator[Reading]:
        """Yield the ways to tell the template what was sampled, likeliest first."""
        if self._answer is None:
            yield NOTHING_SAID
            return
        ids, most, body = self._answer
        for num_end in range(most, -1, -1):
            end_ids = ids[len(ids) - num_end :]
            # A stop token that the template does not write is part of the answer, and the template's
            # end follows it; but no end of the template's own is written twice.
            if most and not num_end and template.shape.is_end(self._codec.decode_few(ids[-1:])):
                return
            if num_end < most:
                body = self._codec.decode(ids[: len(ids) - num_end])
            for message in template.answers(body):
                yield Reading([message], body, self._codec.decode_few(end_ids))

    def _encode_first(self, text: str, new: list[ChatMessage]) -> NDArray[np.int32]:
        """Tokenise the first prompt; what stands before the user's own words is mostly the same in all episodes."""
        said = next((text_of(cast(Message, message)) for message in new if message["role"] == "user"), None)
        place = text.find(said.strip()) if said else 0
        return self._codec.encode_first(text[: max(place, 0)], text[max(place, 0) :])

    def _encode_behind(self, pieces: list[Piece], text: str, at: int, images: tuple[Image, ...]) -> Encoded:
        """Tokenise a text from some place on, behind these pieces; the images are those of all of the text."""
        start, stop = (pieces[-1].start, pieces[-1].stop) if pieces else (0, 0)
        before = self._builder.token_ids()[start:stop]
        if not images:
            return self._codec.encode_after(before, text[at:]), ()
        assert self._pictures is not None  # without it, no image gets this far
        return self._pictures.encode_after(before, text[at:], self._pictures.part(text, at, images))

    def _append(self, token_ids: NDArray[np.int32], end: int = -1, images: Images = ()) -> None:
        if images and self._pictures is not None and not self._builder.images():
            self._pictures.check_text(self._builder.token_ids())  # from now on it matters
        self._builder.add_context(token_ids, self._turn, images)
        self._ends.append(end)
        self._answer = None

    def _fork(self, view: str, text: str, images: tuple[Image, ...], reason: str) -> None:
        """Begin a new sequence: the pieces that the template keeps, as they were, and its rendering of the rest."""
        ends = self._ends[:-1] if self._answer is not None else self._ends
        ends = ends[: bisect_left(ends, True, key=lambda end: not text.startswith(view[:end]))]
        kept = self._builder.pieces[: len(ends)]
        rest, placed = self._encode_behind(kept, text, ends[-1] if ends else 0, images)
        if self._has_actions:
            self._earlier += (self._builder,)
            self._forks += (reason,)
        self._ends = ends
        before, length = self._builder, kept[-1].stop if kept else 0
        kept_ids = before.token_ids()[:length]
        shown = (*before.images(0, length), *(each.moved(length) for each in placed))
        self._builder = self._new_builder(np.concatenate([kept_ids, rest]), shown)
        for piece in kept:
            its_images = before.images(piece.start, piece.stop)
            self._builder.add_context(kept_ids[piece.start : piece.stop], piece.turn, its_images)
        self._has_actions = False
        self._append(rest, len(text), placed)

    def _new_builder(self, token_ids: NDArray[np.int32], images: Images) -> SequenceBuilder:
        """Return a builder for a context that begins with these ids, branching off the sequence before it."""
        if not self._earlier:
            return SequenceBuilder()
        last = self._earlier[-1]
        shared = common_length(last.token_ids(), token_ids, last.images(), images)
        return SequenceBuilder(parent=(len(self._earlier) - 1, shared), fork_reason=self._forks[-1])
