"""A bar on standard error while a command works, where a terminal shows it."""

import sys


class Progress:
    """Counts what is done; shows nothing in a pipe."""

    def __init__(self, what: str, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress as Bar

        self._bar = Bar(console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task(what, total=total)

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self) -> None:
        """Count one more."""
        self._bar.advance(self._task)
