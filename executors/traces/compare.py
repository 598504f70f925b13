"""Where two plays of one episode first differ."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ...agents.sequence import BEFORE_FIRST_TURN
from ..episodes.trajectory import EndReason, FailureKind, Trajectory
from ..store.format import plain
from .turns import Turn, context_of, turns_of

Decode = Callable[[list[int]], str]

# An end that recorded completions cannot bring about again, since it came from time or from the engine.
_UNREPEATABLE = frozenset(
    {FailureKind.ENGINE, FailureKind.ENGINE_DEAD, FailureKind.ENGINE_TIMEOUT, FailureKind.CANCELLED}
)
_UNKNOWN_END = frozenset({FailureKind.STALE, FailureKind.CANCELLED})

_BEFORE, _WIDTH = 24, 240  # characters shown before and from the first that differs


@dataclass(frozen=True)
class Difference:
    """The first thing that is not as it was; turn -1 is the first prompt."""

    turn: int
    what: str
    recorded: str
    now: str


def first_difference(recorded: Trajectory, now: Trajectory, decode: Decode, *, ran_out: bool) -> Difference | None:
    """Return the first difference, or None.

    Args:
        recorded: As it was.
        now: As it is.
        decode: From token ids to text.
        ran_out: Whether a completion was asked for after the last recorded one.
    """
    before, after = turns_of(recorded), turns_of(now)
    last = min(len(before), len(after)) - 2
    end = _end_difference(recorded, now, last, ran_out)
    for old, new in zip(before, after, strict=False):
        for what, was, became in _facts(recorded, now, old, new, decode):
            if was != became:
                return Difference(old.number, what, *_windows(was, became))
        shown, shows = context_of(recorded, old.number), context_of(now, old.number)
        if shown == shows or _says_nothing(recorded, old) or _says_nothing(now, new):
            continue
        if old.number < last or not _only_goes_on(shown, shows) or not (end or ran_out or _may_end_anyhow(recorded)):
            return _token_difference(old.number, shown, shows, decode)
    return end


def _facts(
    recorded: Trajectory, now: Trajectory, old: Turn, new: Turn, decode: Decode
) -> Iterator[tuple[str, str, str]]:
    """Yield what is compared of one turn as texts, in the order in which it happened."""
    number = old.number
    if number > BEFORE_FIRST_TURN:
        yield "completion", _text(old, decode), _text(new, decode)
        yield "tokens of the completion", str(old.token_ids.tolist()), str(new.token_ids.tolist())
        yield "end of the completion", str(old.end), str(new.end)
        if None not in (old.reward, new.reward):
            yield "reward", str(old.reward), str(new.reward)
    if not (_says_nothing(recorded, old) or _says_nothing(now, new)):  # what broke there is told by the end
        yield "observation", _said(old), _said(new)


def _says_nothing(trajectory: Trajectory, turn: Turn) -> bool:
    """Say whether the episode broke in this turn before its observation was read."""
    failure = trajectory.failure
    if failure is None or failure.kind in _UNKNOWN_END or turn.observation:
        return False
    return failure.turn == turn.number


def _only_goes_on(shown: list[list[int]], shows: list[list[int]]) -> bool:
    """Say whether one of two observations is the other with what asks for a completion, which no last one has."""
    if max(len(shown), len(shows)) > 1:
        return False
    short, long = sorted(((shown or [[]])[0], (shows or [[]])[0]), key=len)
    return long[: len(short)] == short


def _token_difference(number: int, shown: list[list[int]], shows: list[list[int]], decode: Decode) -> Difference:
    was, became = (" | ".join(map(decode, ids)) for ids in (shown, shows))
    if was == became:  # the same text in other tokens
        was, became = str(shown), str(shows)
    return Difference(number, "tokens of the observation", *_windows(was, became))


def _may_end_anyhow(trajectory: Trajectory) -> bool:
    return trajectory.failure is not None and trajectory.failure.kind in _UNKNOWN_END


def _end_difference(recorded: Trajectory, now: Trajectory, last: int, ran_out: bool) -> Difference | None:
    failure = recorded.failure
    if _may_end_anyhow(recorded) and (ran_out or now.failure is None) and now.num_turns >= recorded.num_turns:
        return None
    if ran_out:
        may_run_out = recorded.end_reason is EndReason.MAX_SECONDS or (failure and failure.kind in _UNREPEATABLE)
        return None if may_run_out else Difference(last, "end", _end(recorded), "the episode goes on")
    if (recorded.end_reason, failure and failure.kind) != (now.end_reason, now.failure and now.failure.kind):
        return Difference(last, "end", _end(recorded), _end(now))
    if recorded.num_turns != now.num_turns:
        return Difference(last, "end", _end(recorded), _end(now))
    if failure is None and recorded.score != now.score:
        return Difference(last, "score", str(recorded.score), str(now.score))
    return None


def _end(trajectory: Trajectory) -> str:
    failure = trajectory.failure
    if failure is not None:
        return f"failed ({failure.kind.value}) in turn {failure.turn}: {failure.message}"
    return f"{trajectory.end_reason.value} after {trajectory.num_turns} turns"


def _text(turn: Turn, decode: Decode) -> str:
    return decode(turn.token_ids.tolist())


def _said(turn: Turn) -> str:
    """Return what was said; a message that says nothing is only there to be answered."""
    texts = [(str(message["role"]), _content(message)) for message in map(plain, turn.observation)]
    return "\n".join(f"[{role}] {text}" for role, text in texts if text)


def _content(message: dict[str, Any]) -> str:  # Any: JSON
    rest = {key: value for key, value in message.items() if key not in ("role", "content") and value}
    content = message.get("content") or ""
    return f"{content if isinstance(content, str) else repr(content)}{f' {rest!r}' if rest else ''}"


def _windows(was: str, became: str) -> tuple[str, str]:
    """Return both texts around the first place where they differ."""
    place = next((i for i, (a, b) in enumerate(zip(was, became, strict=False)) if a != b), min(len(was), len(became)))
    start = max(0, place - _BEFORE)

    def window(text: str) -> str:
        end = place + _WIDTH
        return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")

    return window(was), window(became)
