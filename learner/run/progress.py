"""What a run shows while it runs: one live line on a terminal, one line per step elsewhere."""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text


class Progress:
    """Shows step, stage, reward, tokens/s and seconds per stage; without steps, only the stage.

    Args:
        total_steps: How many there will be, if no more follow; 0 where nothing goes by steps.
        console: Where to.
    """

    def __init__(self, total_steps: int, console: Console | None = None) -> None:
        self.console = console or Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._total_steps = total_steps
        self._step = 0
        self._stage = "starting"
        self._detail = ""
        self._numbers = ""
        self._stage_began = time.monotonic()
        self._live = Live(console=self.console, refresh_per_second=4, transient=True, get_renderable=self._line)

    def __enter__(self) -> "Progress":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self.console.print(line, markup=False)

    @contextmanager
    def stage(self, name: str, seconds: dict[str, float] | None = None) -> Iterator[None]:
        """Show a stage while it lasts and add its duration to `seconds[name]`."""
        began = time.monotonic()
        self._stage, self._detail, self._stage_began = name, "", began
        try:
            yield
        finally:
            if seconds is not None:
                seconds[name] = seconds.get(name, 0.0) + time.monotonic() - began

    def detail(self, text: str) -> None:
        """Show how far the stage is."""
        self._detail = text

    def step_began(self, step: int) -> None:
        """Show which step runs."""
        self._step, self._total_steps = step, max(self._total_steps, step)

    def step_ended(self, step: int, numbers: Mapping[str, float], seconds: Mapping[str, float]) -> None:
        """Show a finished step's numbers; without a terminal, print them."""
        stages = " ".join(f"{name} {value:.1f}s" for name, value in seconds.items())
        self._numbers = (
            f"reward {numbers.get('reward/mean', float('nan')):.3f} | "
            f"{numbers.get('rollout/tokens_per_s', 0.0):.0f} tokens/s | {stages}"
        )
        if not self.console.is_terminal:
            self.say(f"step {step}/{self._total_steps} | {self._numbers}")

    def _line(self) -> Text:
        elapsed = time.monotonic() - self._stage_began
        now = f"{self._stage} {self._detail} {elapsed:.0f}s".replace("  ", " ")
        steps = f"step {self._step}/{self._total_steps} | " if self._total_steps else ""
        return Text(f"{steps}{now} | {self._numbers}".rstrip(" |"), overflow="ellipsis")
