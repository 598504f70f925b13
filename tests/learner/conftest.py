"""Tiny batches and models that several learner tests share."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from turngym.learner.batch import Batch

MakeBatch = Callable[..., Batch]


def build_batch(masks: Sequence[Sequence[int]], attempts: Sequence[int] | None = None, vocab: int = 50) -> Batch:
    """One sequence per mask (1 = action), with made-up but distinct numbers in every array."""
    is_action = np.concatenate([np.array(mask, bool) for mask in masks] or [np.empty(0, bool)])
    num_tokens = len(is_action)
    rng = np.random.default_rng(num_tokens)
    return Batch(
        token_ids=rng.integers(0, vocab, num_tokens).astype(np.int32),
        is_action=is_action,
        rollout_logprobs=np.where(is_action, -rng.random(num_tokens), np.nan).astype(np.float32),
        versions=np.where(is_action, 3, -1).astype(np.int32),
        temperatures=np.ones(num_tokens, np.float32),
        turns=np.where(is_action, 0, -1).astype(np.int32),
        starts=np.concatenate([[0], np.cumsum([len(mask) for mask in masks])]).astype(np.int64),
        attempts=np.arange(len(masks)) if attempts is None else np.array(attempts, np.int64),
        advantages=np.where(is_action, rng.normal(size=num_tokens), 0).astype(np.float32),
    )


@pytest.fixture
def make_batch() -> MakeBatch:
    return build_batch
