"""Where a thread stands just now, for those who wait for it."""

import asyncio
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
# What calls a user's code, and is passed over on the way to it.
_CALLERS = tuple(map(str, (Path(asyncio.__file__).parent, threading.__file__, _PACKAGE / "agents", _PACKAGE / "envs")))


@dataclass(frozen=True)
class ThreadStack:
    """The frames of a thread, from the first one that is the user's."""

    frames: tuple[traceback.FrameSummary, ...]

    @classmethod
    def of(cls, ident: int | None) -> "ThreadStack":
        """Return where a thread stands; no frames where there is no such thread."""
        frame = None if ident is None else sys._current_frames().get(ident)
        frames = [] if frame is None else list(traceback.extract_stack(frame))
        first = next((at for at, each in enumerate(frames) if not each.filename.startswith(_CALLERS)), len(frames) - 1)
        return cls(tuple(frames[max(first, 0) :]))

    @property
    def place(self) -> str:
        """The user's line, and the innermost one where that is another."""
        ends = [f"{each.filename}:{each.lineno} in {each.name}" for each in (*self.frames[:1], *self.frames[-1:])]
        return ", in ".join(dict.fromkeys(ends)) or "an unknown place"

    def __str__(self) -> str:
        return "".join(traceback.StackSummary.from_list(list(self.frames)).format())
