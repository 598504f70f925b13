"""How a server of environments guards itself."""

from dataclasses import dataclass

from ...errors import ConfigError


@dataclass(frozen=True)
class ServeLimits:
    """What clients may hold, and for how long.

    Attributes:
        lease_s: How long a session may lie unused before it is closed.
        max_sessions: How many there may be at once.
        timeout_s: Deadline of one reset, step or close.
    """

    lease_s: float = 1800.0
    max_sessions: int = 1024
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.lease_s <= 0 or self.timeout_s <= 0 or self.max_sessions < 1:
            raise ConfigError(f"lease_s and timeout_s must be above 0 and max_sessions 1 or more, got {self}")
