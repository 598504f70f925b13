"""All learner ranks as the driver sees them: every call goes to all, since most are collectives."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from ...errors import CheckpointError, DeadlineError, LearnerError, WorkerError
from ...executors.engines.weights import Bucket
from ...executors.fleet.ray_calls import call_all
from ..batch import Batch
from ..losses.aggregations import Totals, count_totals
from ..metrics import Metrics, merge, values
from .packing import MicroBatching, distribute
from .rank import StepResult
from .roles import AnyObjective, Role

PREFIXES: dict[Role, str] = {"actor": "policy", "critic": "value"}  # of the metrics of those who learn
SETTLE_TIMEOUT_S = 60.0  # of ranks, when one of them could not write its part
CONTROL_GROUP = "control"  # the thread of a rank that takes orders while another computes


class Ranks:
    """A group of ranks that hold the same models.

    Args:
        make_actor: Makes rank `index` and returns its Ray handle.
        world_size: How many.
        batching: What bounds one forward pass.
        timeout_s: Deadline of one call.
    """

    def __init__(
        self,
        make_actor: Callable[[int], Any],  # Any: Ray's handles have no types
        world_size: int,
        *,
        batching: MicroBatching,
        timeout_s: float,
    ) -> None:
        self._actors = [make_actor(index) for index in range(world_size)]
        self.batching = batching
        self._timeout_s = timeout_s

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._actors)

    def begin_setup(self) -> list[Any]:
        """Let the ranks join and load the models; return the calls, each giving the number of parameters."""
        (address, port) = self._results([self._actors[0].address.remote()], "finding the first rank")[0]
        return [actor.setup.remote(address, port) for actor in self._actors]

    def scores(self, batches: Sequence[Batch], role: Role) -> list[NDArray[np.float32]] | None:
        """Return a role's scores [N] of each batch, one forward pass each, on every rank alike; None when stopped."""
        scored: list[list[NDArray[np.float32]] | None] = self._all("scores", f"scoring with the {role}", batches, role)
        return scored[0]

    def batch_scores(self, batch: Batch, role: Role) -> NDArray[np.float32] | None:
        """Return a role's scores [N] of one large batch, split over ranks and micro-batches; None when stopped.

        Logprobs of a policy, values before actions of the critic, the reward model's number after every token.
        """
        plan = distribute(batch.lengths, self.world_size, self.batching)
        calls = [
            actor.scores.remote([batch.select(micro) for micro in micros], role)
            for actor, micros in zip(self._actors, plan, strict=True)
        ]
        scored = self._results(calls, f"scoring with the {role}")
        if any(part is None for part in scored):
            return None
        scores_N = np.zeros(batch.num_tokens, np.float32)
        for micros, parts in zip(plan, scored, strict=True):
            for micro, part in zip(micros, parts, strict=True):
                tokens = [np.arange(batch.starts[index], batch.starts[index + 1]) for index in micro]
                if tokens:
                    scores_N[np.concatenate(tokens)] = part
        return scores_N

    def train(
        self,
        batch: Batch,
        objective: AnyObjective,
        lr: float,
        *,
        role: Role = "actor",
        may_stop: bool = True,
        version: int | None = None,
    ) -> dict[str, float] | None:
        """Take one optimiser step on a batch and return its metrics; None when stopped, which `may_stop` allows.

        Sequences whose advantages are all 0 have no gradient and are left out; they stay in the denominators.
        `version` is that of the weights which are trained, to tell how old the tokens are.
        """
        totals: Totals = count_totals(batch, version)
        part = batch if objective.needs_all_sequences else batch.select(_with_signal(batch))
        plan = distribute(part.lengths, self.world_size, self.batching)
        if not plan[0]:
            plan = [[[]] for _ in self._actors]
        calls = [
            actor.train.remote([part.select(micro) for micro in micros], role, totals, objective, lr, may_stop)
            for actor, micros in zip(self._actors, plan, strict=True)
        ]
        results: list[StepResult | None] = self._results(calls, f"an optimiser step of the {role}")
        done = [result for result in results if result is not None]
        if len(done) < len(results):
            return None
        merged: Metrics = merge(result.metrics for result in done)
        grad_norm = done[0].grad_norm
        prefix = PREFIXES[role]
        norm = {f"{prefix}/overflows": 1.0} if grad_norm is None else {f"{prefix}/grad_norm": grad_norm}
        return (
            values(merged)
            | norm
            | {
                f"{prefix}/loss": sum(result.loss for result in done),
                f"{prefix}/lr": lr,
                f"{prefix}/trained_tokens": float(part.num_tokens),
            }
        )

    def request_stop(self) -> None:
        """End what runs at the next micro-batch."""
        for actor in self._actors:
            actor.request_stop.options(concurrency_group=CONTROL_GROUP).remote()

    def plan_export(self, dtype: str) -> int:
        """Lay out the buckets and return how many there are."""
        return int(self._all("plan_export", "planning the weight update", dtype)[0])

    def export(self, index: int, timeout_s: float) -> Bucket:
        """Gather bucket `index` and return where it lies."""
        calls = [actor.export.remote(index) for actor in self._actors]
        bucket: Bucket = self._results(calls, f"gathering weight bucket {index}", timeout_s)[0]
        return bucket

    def scale_weights(self, *, undo: bool) -> None:
        """Perturb every tensor exactly, or undo it."""
        calls = [actor.scale_weights.remote(undo=undo) for actor in self._actors]
        self._results(calls, "perturbing the weights")

    def save(self, folder: str, tag: str, state: dict[str, Any]) -> None:
        """Write every rank's part of a checkpoint.

        Raises:
            CheckpointError: The disk does not take it; the ranks are as they were.
            LearnerError: Some wait for ever for one whose disk does not.
        """
        calls = [actor.save.remote(folder, tag, state) for actor in self._actors]
        try:
            self._results(calls, "writing a checkpoint")
        except CheckpointError as error:
            timeout_s = min(self._timeout_s, SETTLE_TIMEOUT_S)
            _, waiting = ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
            if waiting:
                raise LearnerError(
                    f"the learner: {error}; {len(waiting)} of {len(calls)} ranks wait for others to have written"
                ) from error
            raise

    def load(self, folder: str, tag: str) -> dict[str, Any]:
        """Read every rank's part of a checkpoint."""
        state: dict[str, Any] = self._all("load", "reading a checkpoint", folder, tag)[0]
        return state

    def save_hf(self, folder: str, source: str, role: Role = "actor", *, averaged: bool = False) -> None:
        """Write a model, or the actor's average, as a Hugging Face folder."""
        self._all("save_hf", f"writing the {role}", folder, source, role, averaged)

    def close(self, timeout_s: float = 3.0) -> None:
        """Free shared buffers and end the ranks."""
        calls = [actor.close.remote() for actor in self._actors]
        ray.wait(calls, num_returns=len(calls), timeout=timeout_s)
        for actor in self._actors:
            ray.kill(actor, no_restart=True)

    def _all(self, method: str, what: str, *arguments: Any) -> list[Any]:
        return self._results([getattr(actor, method).remote(*arguments) for actor in self._actors], what)

    def _results(self, calls: list[Any], what: str, timeout_s: float | None = None) -> list[Any]:
        try:
            return call_all(calls, timeout_s or self._timeout_s, what)
        except (WorkerError, DeadlineError) as error:
            raise LearnerError(f"the learner: {error}") from error


def _with_signal(batch: Batch) -> NDArray[np.int64]:
    """Return the sequences that have an advantage other than 0."""
    has_signal = np.zeros(batch.num_sequences, bool)
    has_signal[batch.sequence_of_token[batch.advantages != 0]] = True
    return np.flatnonzero(has_signal)
