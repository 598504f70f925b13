"""The environments of all rollout actors as the loop sees them: how they stand, and what they keep beyond episodes."""

import pickle
from collections.abc import Callable
from pathlib import Path

from ..errors import CheckpointError
from ..executors.fleet.fleet import Fleet
from ..executors.pools.base import Kept
from ..executors.pools.known_states import KnownStates
from ..executors.pools.states import complaint, shared_out
from ..executors.pools.stats import PoolStats, pool_metrics

STATES = "env_states.pkl"
INTERRUPTED_S = 5.0  # deadline of the last question of a run that was asked to stop
GRACE_S = 5.0  # for the way there and back
STATS_S = 10.0  # deadline of the question for a step's metrics
LOAD_S = 60.0  # beyond what a call of an environment may take, before the first episode


class EnvPools:
    """Asks the pools of a fleet's engines.

    Args:
        fleet: Started.
        known: What their environments keep, as last known.
        timeout_s: Deadline of each question.
        say: Where lines for the user go.
        keeps_state: Whether any environment keeps something; otherwise nobody is asked.
    """

    def __init__(
        self, fleet: Fleet, known: KnownStates, timeout_s: float, say: Callable[[str], None], *, keeps_state: bool
    ) -> None:
        self._fleet, self._known = fleet, known
        self._timeout_s, self._say = timeout_s, say
        self._asks = keeps_state

    def metrics(self) -> dict[str, float]:
        """Return how the pools stand; those that do not answer are not in it, which is no reason to end an engine."""
        answers = self._fleet.ask("pool_stats", timeout_s=STATS_S).values()
        stats = [answer for answer in answers if isinstance(answer, PoolStats)]
        return pool_metrics(stats) if stats else {}

    def gather(self) -> None:
        """Ask what classes of environments keep; what cannot be had stays as it was last known, which is said."""
        self._gather(self._timeout_s)

    def gather_last(self) -> None:
        """Ask once more, in a short time, before the engines end; nobody is asked after that."""
        self._gather(min(self._timeout_s, INTERRUPTED_S))
        self._asks = False

    def write(self, folder: Path) -> None:
        """Write what classes of environments keep into a checkpoint.

        Raises:
            OSError: The disk does not take it.
        """
        self.gather()
        (folder / STATES).write_bytes(pickle.dumps(self._known.all))

    def load(self, folder: Path) -> None:
        """Give classes of environments back what a checkpoint holds, before the first episode.

        Raises:
            CheckpointError: It cannot be read.
        """
        path = folder / STATES
        try:
            states = pickle.loads(path.read_bytes())
        except (OSError, pickle.UnpicklingError, EOFError, AttributeError, ImportError) as error:
            raise CheckpointError(f"{path} cannot be read, which holds the state of environments: {error}") from error
        engines = self._fleet.started
        parts = shared_out(states, len(engines))
        # Noted first: should an actor die in the middle, the one in its place is made with its part.
        self._known.give({engine.index: part for engine, part in zip(engines, parts, strict=True)})
        for engine, part in zip(engines, parts, strict=True):
            what = "giving environments their state back"
            self._fleet.call([engine], "load_pool_states", part, timeout_s=self._timeout_s + LOAD_S, what=what)

    def _gather(self, timeout_s: float) -> None:
        if not self._asks:
            return
        asked = self._known.asked()
        for engine, answer in self._fleet.ask("pool_states", timeout_s, timeout_s=timeout_s + GRACE_S).items():
            if isinstance(answer, Kept):
                self._known.learn(engine, answer, asked)
                lines = answer.complaints
            else:
                lines = (complaint(self._known.names(engine), str(answer)),)
            for line in lines:
                self._say(f"WARNING: engine {engine}: {line}")
