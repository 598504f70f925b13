"""A model's chat template: rendering with it, and what it puts around an answer, probed once."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from jinja2.exceptions import TemplateError as JinjaError

from ..envs.images import Image
from ..envs.messages import Message
from ..errors import ConfigError, TemplateError
from .compiled_template import compiled_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ChatMessage = dict[str, Any]  # what templates read; Any: each template has keys of its own

# Words that no template contains or changes.
_USER, _ANSWER, _THOUGHT, _MORE = "zqUserqz", "zqAnswerqz", "zqThoughtqz", "zqMoreqz"
# What a generation prompt opens for the model: `<think>`, or an empty pair to keep it from thinking.
_OPENED = re.compile(r"[<\[](\w+)[>\]]\s*([<\[]/\1[>\]]\s*)?$")


@dataclass(frozen=True)
class TemplateShape:
    """What a template puts around one answer.

    Attributes:
        takes_parts: Content must be a list of typed parts; plain text is not shown.
        opened: What the generation prompt opens on the model's behalf, such as `<think>`.
        header_rest: What stands before an answer in history but not in the generation prompt, so
            that the model writes it itself.
        ends: What follows the answer when it is the last message, and when a user speaks next.
        thought: What stands before a thought, and between it and the answer; None where thoughts
            have no field of their own.
    """

    takes_parts: bool
    opened: str
    header_rest: str
    ends: tuple[str, str]
    thought: tuple[str, str] | None

    def is_end(self, token: str) -> bool:
        """Say whether the template itself ends a turn with this special token."""
        return self.ends[0].startswith(token) or token in self.ends[1]

    def thought_openings(self) -> list[str]:
        """Return the texts that open a thought."""
        return [mark for mark in (self.opened.strip(), self.thought[0].strip() if self.thought else "") if mark]

    def thought_marks(self) -> list[str]:
        """Return all texts that mark a thought."""
        return [*self.thought_openings(), *([self.thought[1].strip()] if self.thought else []), "</think>"]


class ChatTemplate:
    """Renders messages as a tokenizer's chat template does, and knows its shape."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        if not tokenizer.chat_template:
            raise ConfigError(
                "this tokenizer has no chat template; give it one (tokenizer.chat_template), "
                "or send prompts as they are with apply_chat_template=False"
            )
        self._tokenizer = tokenizer
        self._kwargs = dict(template_kwargs or {})
        self._tools = list(tools) if tools else None
        self.has_clock = "strftime_now" in str(tokenizer.chat_template) and "strftime_now" not in self._kwargs
        self._compiled = compiled_template(tokenizer, self._kwargs, self._tools)
        self.shape = self._probe()

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool,
        strftime_now: Callable[[str], str] | None = None,
    ) -> str:
        """Return the template's text for a whole conversation.

        Args:
            messages: As `prepare` returns them.
            add_generation_prompt: Whether the model is to answer next.
            strftime_now: The time that templates with a clock show.

        Raises:
            TemplateError: The template refuses the messages; in its own words.
        """
        try:
            text = self._rendered(
                messages, add_generation_prompt, {"strftime_now": strftime_now} if strftime_now else {}
            )
        except (JinjaError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            roles = ", ".join(str(message.get("role")) for message in messages[-6:])
            raise TemplateError(
                f"the chat template refuses this conversation (roles: {'..., ' if len(messages) > 6 else ''}{roles}): "
                f"{error}"
            ) from error
        return text

    def after_answer(self, messages: Sequence[ChatMessage], *, add_generation_prompt: bool) -> str:
        """Return what the template puts behind some answer: its end, these messages, the generation prompt."""
        known = self._in_form([_user(), _answer()])
        text = self.render([*known, *messages], add_generation_prompt=add_generation_prompt)
        if _ANSWER not in text:
            raise TemplateError("the chat template drops earlier answers, so these messages have no place behind one")
        return text.partition(_ANSWER)[2]

    def prepare(self, message: Message) -> ChatMessage:
        """Bring a message into the form this template reads.

        Raises:
            TemplateError: It holds something other than text and images.
        """
        if images_of(message):
            parts = cast(list[dict[str, Any]], message["content"])
            text_of({**message, "content": [part for part in parts if "image" not in part]})  # sees that it is text
            return {**message, "content": [{"type": "image"} if "image" in part else part for part in parts]}
        return self._in_form([{**message, "content": text_of(message)}])[0]

    def image_text(self) -> str:
        """Return what the template writes for an image; nothing where it leaves images out."""
        parts = [{"type": "text", "text": _USER}, {"type": "image"}, {"type": "text", "text": _MORE}]
        text = self.render([{"role": "user", "content": parts}], add_generation_prompt=False)
        return _between(text, _USER, _MORE) or ""

    def answers(self, body: str) -> Iterator[ChatMessage]:
        """Yield the messages that may stand for an answer in history, likeliest first.

        Args:
            body: What the model wrote behind the generation prompt, without the end of the turn.
        """
        shape, whole = self.shape, self.shape.opened + body
        if shape.thought:
            before, between = (mark.strip() for mark in shape.thought)
            thought, mark, content = whole.lstrip().removeprefix(before).partition(between)
            if mark and whole.lstrip().startswith(before):
                thought, content = thought.strip("\n"), content.lstrip("\n")
                yield self._in_form([{**_answer(content), "reasoning_content": thought, "thinking": thought}])[0]
        rest = shape.header_rest.strip()
        written = body.lstrip().removeprefix(rest) if rest and body.lstrip().startswith(rest) else whole
        yield from self._in_form([_answer(content) for content in dict.fromkeys((written, whole, body))])

    def _rendered(
        self, messages: Sequence[ChatMessage], add_generation_prompt: bool, clock: dict[str, Callable[[str], str]]
    ) -> str:
        if self._compiled is None or not messages:
            # Any: what templates take is theirs to say.
            given: dict[str, Any] = {"tools": self._tools, **self._kwargs, **clock}
            text = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=add_generation_prompt, tokenize=False, **given
            )
            return cast(str, text)
        names = {"messages": list(messages), "add_generation_prompt": add_generation_prompt, **clock}
        return self._compiled.render(names)

    def _in_form(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        if not self.shape.takes_parts:
            return list(messages)
        return [_in_parts(message) for message in messages]

    def _probe(self) -> TemplateShape:
        """Render small conversations of known words and look at what stands between them."""
        takes_parts = not self._shows_text()
        form = _in_parts if takes_parts else dict

        def rendered(*messages: ChatMessage, prompt: bool) -> str:
            return self.render([form(message) for message in messages], add_generation_prompt=prompt)

        prompt = rendered(_user(), prompt=True).partition(_USER)[2]
        history = rendered(_user(), _answer(), _user(_MORE), prompt=True)
        last = rendered(_user(), _answer(), prompt=False)
        found = _OPENED.search(prompt)
        opened = found.group() if found else ""
        base = prompt.removesuffix(opened)
        header = _between(history, _USER, _ANSWER) or ""
        try:
            thought = {"reasoning_content": _THOUGHT, "thinking": _THOUGHT}
            thinking = rendered(_user(), {**_answer(), **thought}, prompt=False)
        except TemplateError:
            thinking = ""  # a template that refuses the fields has none for thoughts
        before, between = _between(thinking, _USER, _THOUGHT), _between(thinking, _THOUGHT, _ANSWER)
        has_thought = before is not None and between is not None and before.startswith(base) and between.strip()
        return TemplateShape(
            takes_parts=takes_parts,
            opened=opened,
            header_rest=header[len(base) :] if header.startswith(base) else "",
            ends=(last.partition(_ANSWER)[2], _between(history, _ANSWER, _MORE) or ""),
            thought=(before[len(base) :], between) if has_thought and before and between else None,
        )

    def _shows_text(self) -> bool:
        """Say whether plain text is shown; some vision templates read only lists of parts."""
        try:
            if _USER in self.render([_user()], add_generation_prompt=True):
                return True
            refusal = None
        except TemplateError as error:
            refusal = error
        try:
            if _USER in self.render([_in_parts(_user())], add_generation_prompt=True):
                return False
        except TemplateError as error:
            raise refusal or error from error
        raise refusal or TemplateError("the chat template does not show what a user says")


def text_of(message: Message) -> str | None:
    """Return the text of a message, its parts joined; None where it has no content.

    Raises:
        TemplateError: A part is not text.
    """
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content
    kinds = sorted(
        {str(part.get("type")) for part in content if "text" not in part or part.get("type", "text") != "text"}
    )
    if kinds:
        raise TemplateError(
            f"a message of role {message['role']!r} holds parts of type {', '.join(kinds)}, where only text can stand; "
            "give their content as text"
        )
    return "".join(part["text"] for part in content)


def images_of(message: Message) -> list[Image]:
    """Return the images among the parts of a message, which have been read (`envs.images`)."""
    content = message.get("content")
    return [part["image"] for part in content if "image" in part] if isinstance(content, list) else []


def plain_text(observation: list[Message]) -> str:
    """Return the text of an observation that no template is put around."""
    if len(observation) > 1 or any(message["role"] != "user" for message in observation):
        raise TemplateError(
            "with apply_chat_template=False an observation is one text, got messages of roles "
            f"{', '.join(message['role'] for message in observation)}; return a str, or apply the template"
        )
    return "".join(text_of(message) or "" for message in observation)


def _user(text: str = _USER) -> ChatMessage:
    return {"role": "user", "content": text}


def _answer(text: str = _ANSWER) -> ChatMessage:
    return {"role": "assistant", "content": text}


def _in_parts(message: ChatMessage) -> ChatMessage:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _between(text: str, left: str, right: str) -> str | None:
    """Return what stands between two words that each occur once, in this order."""
    if text.count(left) != 1 or text.count(right) != 1:
        return None
    middle, found, _ = text.partition(left)[2].partition(right)
    return middle if found else None
