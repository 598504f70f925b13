"""Takes answers apart: thoughts, calls and the rest, by parsers that were chosen or that a chat template suggests."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..envs.tools.calls import ParsedAnswer, Schema, ToolCall, ToolCallParser
from ..errors import ConfigError
from .parser_guess import Guess, guess_reasoning_parser, guess_tool_parser
from .reasoning import PAIRS, REASONING_PARSERS, ReasoningParser, Thought, reasoning_parser
from .tool_calls import DEFAULT_PARSER, TOOL_PARSERS, tool_parser

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_logger = logging.getLogger(__name__)
TOOL_OPTION = "--rollout.tool_parser"


class ReadAnswer(NamedTuple):
    """An answer taken apart.

    Attributes:
        reasoning: What the model thought; None where it holds no thoughts.
        content: The text outside of calls and thoughts.
        calls: In the order they were written.
    """

    reasoning: str | None
    content: str
    calls: tuple[ToolCall, ...]

    @property
    def parsed(self) -> ParsedAnswer:
        """What environments are given."""
        return ParsedAnswer(self.content, self.calls)


class AnswerReader:
    """Reads the answers of one model that is told of one set of tools.

    Args:
        thoughts: Reads thoughts.
        calls: Reads calls, in what is left; None where the model is told of no tools.
        opened: What the generation prompt opens on the model's behalf, such as `<think>`.
        names: Of the parsers of thoughts and of calls.
        may_think: Whether thoughts may stand between marks of text in an answer.

    Attributes:
        thoughts: As given.
        calls: As given.
        opened: As given.
        names: As given.
        may_think: As given.
    """

    def __init__(
        self,
        thoughts: ReasoningParser,
        calls: ToolCallParser | None,
        opened: str = "",
        names: tuple[str, str] = ("", ""),
        *,
        may_think: bool = False,
    ) -> None:
        self.thoughts = thoughts
        self.calls = calls
        self.opened = opened
        self.names = names
        self.may_think = may_think

    @property
    def closing(self) -> str | None:
        """The mark that closes a call; empty where each ends with its JSON, None where that is not known."""
        closing: str | None = getattr(self.calls, "closing", None)
        return closing

    def read(self, text: str) -> ReadAnswer:
        """Take an answer apart; whatever the model wrote, this never raises.

        Args:
            text: What was sampled, with its special tokens, the end of the turn left out.
        """
        reasoning, content = self.split(text)
        if self.calls is None:
            return ReadAnswer(reasoning, content, ())
        return ReadAnswer(reasoning, *self.calls.parse(content))

    def split(self, text: str) -> Thought:
        """Take the thoughts alone out of an answer; see `read`."""
        return self.thoughts.split(self.opened + text)


class AnswerReaders:
    """Makes the readers of one model.

    Args:
        tokenizer: The model's.
        tool_parser: A name of `agents.tool_calls`; by default what the chat template suggests.
        reasoning_parser: A name of `agents.reasoning`; by default likewise.

    Raises:
        UnknownNameError: There is no such parser; names the nearest.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", tool_parser: str | None = None, reasoning_parser: str | None = None
    ) -> None:
        for name, registry in ((tool_parser, TOOL_PARSERS), (reasoning_parser, REASONING_PARSERS)):
            if name is not None:
                registry[name]  # refuses it
        self._tokenizer = tokenizer
        self._tool_parser, self._reasoning_parser = tool_parser, reasoning_parser
        template = self.template
        self._guessed_tool, self._guessed_reasoning = guess_tool_parser(template), guess_reasoning_parser(template)
        self._has_said = False

    @property
    def tool_parser(self) -> str:
        """The name of the parser of calls."""
        return self._tool_parser or self._guessed_tool.name

    @property
    def reasoning_parser(self) -> str:
        """The name of the parser of thoughts."""
        return self._reasoning_parser or self._guessed_reasoning.name

    @property
    def template(self) -> str:
        """The model's chat template."""
        return str(self._tokenizer.chat_template or "")

    @property
    def choice(self) -> str:
        """A line that says how calls are read, and why so."""
        if self._tool_parser is not None:
            return _line(self._tool_parser, f"{TOOL_OPTION} says so")
        return _line(*_reason(self._guessed_tool))

    def check(self) -> None:
        """Refuse parsers that were named and cannot be made.

        Raises:
            ConfigError: One is not made for this tokenizer.
            MissingPackageError: One is vLLM's, which is not installed.
        """
        if self._reasoning_parser is not None:
            reasoning_parser(self._reasoning_parser, self._tokenizer)
        if self._tool_parser is not None:
            tool_parser(self._tool_parser, self._tokenizer)

    def of(self, tools: Sequence[Schema] = (), *, opened: str = "", has_own_form: bool = True) -> AnswerReader:
        """Return a reader.

        Args:
            tools: What the model is told of.
            opened: What the generation prompt opens on the model's behalf.
            has_own_form: The template tells of the tools. Where it does not, the model is told of the default form.

        Raises:
            ConfigError: A parser is not made for this tokenizer.
            MissingPackageError: A parser is vLLM's, which is not installed.
        """
        thoughts = reasoning_parser(self.reasoning_parser, self._tokenizer)
        if not tools:
            return AnswerReader(thoughts, None, opened, (self.reasoning_parser, ""))
        guess = self._guessed_tool if has_own_form else Guess(DEFAULT_PARSER, "")
        names = (self.reasoning_parser, self._tool_parser or guess.name)
        if self._tool_parser is not None:
            calls = tool_parser(self._tool_parser, self._tokenizer, tools)
            return AnswerReader(thoughts, calls, opened, names, may_think=self._may_think(opened))
        self._say(guess)
        try:
            calls = tool_parser(guess.name, self._tokenizer, tools)
            return AnswerReader(thoughts, calls, opened, names, may_think=self._may_think(opened))
        except ConfigError as error:
            raise ConfigError(f"{error}; it was taken since {_reason(guess)[1]}") from error

    def _may_think(self, opened: str) -> bool:
        template = self.template
        return any(begin in opened or (begin in template and end in template) for begin, end in PAIRS)

    def _say(self, guess: Guess) -> None:
        """Log once how calls are read."""
        if not self._has_said:
            _logger.info("%s", _line(*_reason(guess)))
        self._has_said = True


def _reason(guess: Guess) -> tuple[str, str]:
    mark = f"the chat template holds {guess.mark!r}" if guess.mark else "the chat template has no marks of another"
    return guess.name, f"{mark}; {TOOL_OPTION} sets it"


def _line(name: str, reason: str) -> str:
    return f"tool calls are read by the parser {name!r}, since {reason}"
