"""An answer as a client reads it: content, thought and tool calls, derived from what was sampled."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...envs.base import Action
from ...envs.messages import Message
from ...envs.tools.calls import ToolCall
from ..answer_reader import AnswerReader
from ..base import Completion, StopReason
from .canonical import Form, answer_form
from .canonical import clean as _clean


@dataclass(frozen=True)
class AnswerCall:
    """A tool call as a client reads it; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """One choice of a response.

    Attributes:
        content: What it says outside of its thought and its calls; cut before a stop string.
        thought: None where there is none.
        calls: Those that can be made.
        finish_reason: `stop`, `length` or `tool_calls`.
        num_prompt: How many tokens the engine read.
        prompt_ids: Those, where the client wants them: kept for every answer they would fill the memory.
        completion: What it sampled.
        turn: The session's number of it.
        stop: The stop string that ended it.
    """

    content: str
    thought: str | None
    calls: tuple[AnswerCall, ...]
    finish_reason: str
    num_prompt: int
    prompt_ids: NDArray[np.int32] | None
    completion: Completion
    turn: int
    stop: str | None = None


@dataclass(frozen=True)
class Read:
    """What was read in an action; `problems` is what the model is told next of calls that nobody could read."""

    content: str
    thought: str | None
    calls: tuple[AnswerCall, ...]
    problems: list[Message]
    forms: list[Form]
    stop: str | None = None


class Reader:
    """Reads the answers of one session, and names their calls."""

    def __init__(self) -> None:
        self._numbers = count()

    def read(
        self,
        action: Action,
        written: str,
        reader: AnswerReader,
        stop: Sequence[str],
        *,
        takes_calls: bool,
        is_parallel: bool,
    ) -> Read:
        """Take an answer apart.

        Args:
            action: What the model wrote, and its calls as the model's parser read them.
            written: The same with its special tokens, the end of the turn left out.
            reader: Reads thoughts as the episodes of environments have them read.
            stop: Strings that ended it; none of them is shown.
            takes_calls: Whether the client wants calls.
            is_parallel: Whether it takes more than one at once.
        """
        shown, stopped_by = before_stop(written, stop)
        thought, said = reader.split(shown)
        if said == shown:
            said = before_stop(str(action), stop)[0]  # nothing was taken out of it; no special token is shown
        parsed = action.parsed if takes_calls else None
        outside = before_stop(parsed.content, stop)[0] if parsed is not None else said
        if parsed is None or not parsed.calls:
            said = outside if said else ""  # it may have been cut within its thought
            return Read(said, thought, (), [], self._forms(action, said, ()), stopped_by)
        sound = [call for call in parsed.calls if call.problem is None]
        calls = tuple(map(self._named, sound if is_parallel else sound[:1]))
        problems = [self._told(call) for call in parsed.calls if call.problem is not None]
        content = outside if calls else said
        return Read(content, thought, calls, problems, self._forms(action, content, calls))

    def _named(self, call: ToolCall) -> AnswerCall:
        return AnswerCall(_clean(call.id or self._new_id()), _clean(call.name), as_json(call.arguments))

    def _told(self, call: ToolCall) -> Message:
        name, call_id = _clean(call.name) or "unknown", _clean(call.id or self._new_id())
        return Message(role="tool", name=name, tool_call_id=call_id, content=_clean(call.problem or ""))

    def _new_id(self) -> str:
        return f"call{next(self._numbers):05}"  # nine letters and digits: Mistral's templates take no other

    def _forms(self, action: Action, content: str, calls: tuple[AnswerCall, ...]) -> list[Form]:
        """Return the forms in which the answer may come back: as it was given, with its thought, without its text."""
        said = [(call.name, json.loads(call.arguments)) for call in calls]
        forms = [answer_form(content, said), answer_form(str(action), [])]
        return [*forms, answer_form("", said)] if calls else forms


def finish_reason(completion: Completion, calls: Sequence[AnswerCall]) -> str:
    """Return OpenAI's word for why a completion ended."""
    if completion.stop_reason is not StopReason.STOP:
        return "length"
    return "tool_calls" if calls else "stop"


def before_stop(text: str, stop: Sequence[str]) -> tuple[str, str | None]:
    """Return what a client is shown of a text, and the stop string that ended it."""
    found = [(text.find(each), each) for each in stop if each in text]
    place, stopped_by = min(found, default=(len(text), None))
    return text[:place], stopped_by


def as_json(arguments: Mapping[str, Any]) -> str:  # Any: they are JSON
    """Return arguments as a client is given them."""
    try:
        return _clean(json.dumps(dict(arguments), ensure_ascii=False, allow_nan=False))
    except ValueError:  # NaN and the infinities, which Python reads and JSON has not
        return json.dumps({key: repr(value) for key, value in arguments.items()})
