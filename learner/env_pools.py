"""The environments of all rollout actors as the loop sees them: how they stand, and what they keep beyond episodes."""

import pickle
from pathlib import Path

from ..errors import CheckpointError
from ..executors.fleet import Fleet
from ..executors.pools.base import States
from ..executors.pools.states import joined, shared_out
from ..executors.pools.stats import pool_metrics

STATES = "env_states.pkl"


class EnvPools:
    """Asks the pools of a fleet's engines.

    Args:
        fleet: Started.
        timeout_s: Deadline of each question.
    """

    def __init__(self, fleet: Fleet, timeout_s: float) -> None:
        self._fleet, self._timeout_s = fleet, timeout_s
        self._states: States = {}

    def metrics(self) -> dict[str, float]:
        """Return how the pools stand; those of engines that are being started anew are not in it."""
        what = "asking how the environments stand"
        stats = self._fleet.call(self._fleet.started, "pool_stats", timeout_s=self._timeout_s, what=what)
        return pool_metrics(list(stats.values())) if stats else {}

    def gather(self) -> None:
        """Ask for what classes of environments keep; it is written from then on where no engine answers any more."""
        what = "asking for the state of the environments"
        parts = self._fleet.call(
            self._fleet.started, "pool_states", self._timeout_s, timeout_s=2 * self._timeout_s, what=what
        )
        if parts:
            self._states = joined(parts.values())

    def write(self, folder: Path) -> None:
        """Write what classes of environments keep into a checkpoint."""
        self.gather()
        (folder / STATES).write_bytes(pickle.dumps(self._states))

    def load(self, folder: Path) -> None:
        """Give classes of environments back what a checkpoint holds, before the first episode.

        Raises:
            CheckpointError: It cannot be read.
        """
        path = folder / STATES
        try:
            self._states = pickle.loads(path.read_bytes())
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise CheckpointError(f"{path} cannot be read, which holds the state of environments: {error}") from error
        engines = self._fleet.started
        for engine, part in zip(engines, shared_out(self._states, len(engines)), strict=True):
            what = "giving environments their state back"
            self._fleet.call([engine], "load_pool_states", part, timeout_s=self._timeout_s, what=what)
