"""Which version sampled which token of one completion, as a few spans instead of one number per token."""

# T tokens

import numpy as np
from numpy.typing import NDArray


class VersionSpans:
    """The versions of one completion while it is sampled; grows with updates, not with tokens."""

    def __init__(self, version: int) -> None:
        self._versions = [version]
        self._ends: list[int] = []  # of all spans but the last

    def cut(self, num_tokens: int, version: int) -> None:
        """Note that `num_tokens` have been sampled, and that this version samples those that follow."""
        self._ends.append(num_tokens)
        self._versions.append(version)

    def versions(self, num_tokens: int) -> NDArray[np.int32]:
        """Return the version of each of the completion's tokens, int32 [T]."""
        lengths = np.diff([0, *self._ends, num_tokens])
        return np.repeat(np.asarray(self._versions, np.int32), lengths)
