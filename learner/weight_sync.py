"""Weights from the learner into the engines: pause, send, verify, resume; each part with a deadline.

Verified every time by the checksum of each bucket's bytes and by the version; at start by a canary,
since comparing logprobs proves nothing in bf16, where one update moves them less than noise does.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..agents.base import Sampling
from ..errors import WeightSyncError
from ..executors.engines.base import UpdateMode
from ..executors.fleet.fleet import Fleet
from ..executors.fleet.fleet_engine import EngineRef
from .batch import Batch
from .ranks.group import Ranks

CANARY_TOKENS = 24
# The engine follows if it is this much nearer to the perturbed weights than to the true ones. On SmolLM2 bf16's noise
# is 0.01 of that distance; with one layer's attention or MLP, or the tied head, left behind it is 0.17 to 0.32.
FOLLOWS = 0.1
PERTURBED = -2  # the version of weights that no episode may ever see; -1 is that of tokens nobody sampled


@dataclass(frozen=True)
class CanaryReport:
    """Mean absolute differences of logprobs, engine against learner, on tokens the engine sampled."""

    perturbed: float  # both with the perturbed weights
    power: float  # engine with the perturbed weights, learner with the true ones
    true: float  # both with the true weights, sent after


class WeightSync:
    """Publishes the learner's weights; a version is one published set.

    Args:
        ranks: The learner.
        fleet: The engines.
        dtype: torch dtype name that the engines use.
        timeout_s: Deadline of each part.
        pause_timeout_s: Deadline of the pause, in which running completions may have to finish.
        mode: What becomes of these.
        version: The last one that was published; more than 0 in a run that goes on.
    """

    def __init__(
        self,
        ranks: Ranks,
        fleet: Fleet,
        dtype: str,
        timeout_s: float,
        pause_timeout_s: float,
        mode: UpdateMode = UpdateMode.DRAIN,
        version: int = 0,
    ) -> None:
        self._ranks, self._fleet, self._mode = ranks, fleet, mode
        self._timeout_s, self._pause_timeout_s = timeout_s, pause_timeout_s
        self._num_buckets = ranks.plan_export(dtype)
        self.version = version

    def publish(self) -> float:
        """Send the learner's weights to all engines under the next version; return the seconds it took.

        An engine that dies meanwhile is started anew by the fleet, and gets its weights from `bring`.

        Raises:
            WeightSyncError: The bytes that arrived are not those that left, or a version is not the one sent.
            DeadlineError: No engine did its part in time.
        """
        started_at = time.monotonic()
        self.version += 1
        self._send(self._fleet.started, self.version)
        return time.monotonic() - started_at

    def bring(self) -> None:
        """Send the published weights to engines that were started anew; only while the learner still has them."""
        if bare := self._fleet.bare:
            self._send(bare, self.version)

    def check_canary(self, prompt_ids: Sequence[int], max_context: int) -> CanaryReport:
        """Send strongly perturbed weights, see the engines follow, and send the true ones.

        Every tensor is halved, tied and fused ones included: exact both ways, a strong change, and a smooth one
        (doubling makes a network so steep that bf16's rounding looks like a change). Prompt and answer take at most
        half of the context each.

        Raises:
            WeightSyncError: An engine did not follow.
        """
        half = max(1, max_context // 2)
        prompt_ids, num_tokens = prompt_ids[:half], min(CANARY_TOKENS, half)
        self._ranks.scale_weights(undo=False)
        self._send(self._fleet.started, PERTURBED)
        samples = self._sample(prompt_ids, num_tokens)
        perturbed = self._distance(samples)
        self._ranks.scale_weights(undo=True)
        power = self._distance(samples)
        self._send(self._fleet.started, self.version)
        report = CanaryReport(perturbed, power, self._distance(self._sample(prompt_ids, num_tokens)))
        if not (report.perturbed < FOLLOWS * report.power and report.true < FOLLOWS * report.power):
            raise WeightSyncError(
                "an engine did not follow the weights that were sent to it: with perturbed weights its logprobs "
                f"differ from the learner's by {report.perturbed:.3f} on average (from the true weights' by "
                f"{report.power:.3f}), with the true weights sent after by {report.true:.3f}. "
                "The engine may convert weights in a way that an update does not reach; report the model's architecture"
            )
        return report

    def _send(self, engines: Sequence[EngineRef], version: int) -> None:
        pausing = self._fleet.call(
            engines, "begin_update", self._mode, timeout_s=self._pause_timeout_s, what="pausing the engines"
        )
        ready = tuple(pausing)  # one that dies from here on is passed over, also if another has begun in its place
        call = partial(self._fleet.call, timeout_s=self._timeout_s)
        for number in range(self._num_buckets):
            bucket = self._ranks.export(number, self._timeout_s)
            received = call(ready, "load_bucket", bucket, what=f"loading weight bucket {number}")
            for engine, checksum in received.items():
                if checksum != bucket.checksum:
                    raise WeightSyncError(
                        f"bucket {number} of version {version} arrived changed in engine {engine.index}: "
                        f"checksum {checksum} instead of {bucket.checksum}"
                    )
        versions = call(ready, "finish_update", version, what="finishing the weight update")
        if any(came != version for came in versions.values()):
            came = {engine.index: number for engine, number in versions.items()}
            raise WeightSyncError(f"engines report versions {came} after version {version} was sent")
        self._fleet.equip(versions)

    def _sample(self, prompt_ids: Sequence[int], num_tokens: int) -> list[Batch]:
        sampling = Sampling(max_tokens=num_tokens)
        samples = self._fleet.call(
            self._fleet.started,
            "sample",
            list(prompt_ids),
            sampling,
            timeout_s=self._timeout_s,
            what="sampling with new weights",
        )
        if not samples:
            raise WeightSyncError("no engine lives that the weight update could be checked with")
        return [_as_batch(prompt_ids, token_ids, logprobs) for token_ids, logprobs in samples.values()]

    def _distance(self, samples: list[Batch]) -> float:
        """Return the largest mean |difference| between an engine's logprobs and the learner's current weights."""
        scored = self._ranks.scores(samples, "actor")
        assert scored is not None  # nobody stops a run before it has begun
        return max(
            float(np.abs(logprobs[batch.is_action] - batch.rollout_logprobs[batch.is_action]).mean())
            for batch, logprobs in zip(samples, scored, strict=True)
        )


def _as_batch(prompt_ids: Sequence[int], token_ids: list[int], logprobs: list[float]) -> Batch:
    num_prompt, num_tokens = len(prompt_ids), len(prompt_ids) + len(token_ids)
    is_action = np.arange(num_tokens) >= num_prompt
    rollout_logprobs = np.full(num_tokens, np.nan, np.float32)
    rollout_logprobs[num_prompt:] = logprobs
    return Batch(
        token_ids=np.asarray([*prompt_ids, *token_ids], np.int32),
        is_action=is_action,
        rollout_logprobs=rollout_logprobs,
        versions=np.where(is_action, 0, -1).astype(np.int32),
        temperatures=np.ones(num_tokens, np.float32),
        turns=np.where(is_action, 0, -1).astype(np.int32),
        starts=np.array([0, num_tokens], np.int64),
        attempts=np.zeros(1, np.int64),
        advantages=np.zeros(num_tokens, np.float32),
    )
