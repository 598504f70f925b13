"""What a scripted engine works on: time passes for it, and tokens come in proportion."""

from dataclasses import dataclass

from .version_spans import VersionSpans


@dataclass(eq=False)
class Work:
    """A request that takes its time; time stands still while the engine holds it."""

    spans: VersionSpans
    num_tokens: int = 0
    seconds: float = 0.0
    done_s: float = 0.0
    since: float | None = None  # when it last began to go on; None while it does not

    def advance(self, now: float) -> None:
        """Count the time that has passed, and stop the clock."""
        if self.since is not None:
            self.done_s += now - self.since
            self.since = None

    @property
    def num_sampled(self) -> int:
        """The tokens that are there, in proportion to the time that passed."""
        share = min(self.done_s / self.seconds, 1.0) if self.seconds > 0 else 0.0
        return int(self.num_tokens * share + 1e-6)  # a clock's sums fall short of whole tokens by less
