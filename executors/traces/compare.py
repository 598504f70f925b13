"""Where two plays of one episode first differ."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ...agents.sequence import BEFORE_FIRST_TURN
from ..store_format import plain
from ..trajectory import EndReason, FailureKind, Trajectory
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
    for old, new in zip(before, after, strict=False):
        for what, was, became in _facts(recorded, now, old, new, decode):
            if was != became:
                return Difference(old.number, what, *_windows(was, became))
    last = min(len(before), len(after)) - 2
    return _end_difference(recorded, now, last, ran_out)


def _facts(
    recorded: Trajectory, now: Trajectory, old: Turn, new: Turn, decode: Decode
) -> Iterator[tuple[str, str, str]]:
    """Yield what is compared of one turn as texts, in the order in which it happened."""
    if old.number > BEFORE_FIRST_TURN:
        yield "completion", _text(old, decode), _text(new, decode)
        yield "tokens of the completion", str(old.token_ids.tolist()), str(new.token_ids.tolist())
        yield "end of the completion", str(old.end), str(new.end)
        if None not in (old.reward, new.reward):  # else the episode failed here, which its end says
            yield "reward", str(old.reward), str(new.reward)
    if recorded.failure is None or now.failure is None or old.observation:
        yield "observation", _said(old), _said(new)
    shown, shows = context_of(recorded, old.number), context_of(now, old.number)
    if shown != shows:
        was, became = (" | ".join(map(decode, ids)) for ids in (shown, shows))
        if was == became:  # the same text in other tokens
            was, became = str(shown), str(shows)
        yield "tokens of the observation", was, became


def _end_difference(recorded: Trajectory, now: Trajectory, last: int, ran_out: bool) -> Difference | None:
    failure = recorded.failure
    is_over = failure is not None and failure.kind in _UNKNOWN_END
    if is_over and (ran_out or now.failure is None) and now.num_turns >= recorded.num_turns:
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
    return "\n".join(f"[{m['role']}] {_content(m)}" for m in map(plain, turn.observation))


def _content(message: dict[str, object]) -> str:
    rest = {key: value for key, value in message.items() if key not in ("role", "content") and value}
    content = message.get("content")
    return f"{content if isinstance(content, str) else repr(content)}{f' {rest!r}' if rest else ''}"


def _windows(was: str, became: str) -> tuple[str, str]:
    """Return both texts around the first place where they differ."""
    place = next((i for i, (a, b) in enumerate(zip(was, became, strict=False)) if a != b), min(len(was), len(became)))
    start = max(0, place - _BEFORE)

    def window(text: str) -> str:
        end = place + _WIDTH
        return ("..." if start else "") + text[start:end] + ("..." if end < len(text) else "")

    return window(was), window(became)
