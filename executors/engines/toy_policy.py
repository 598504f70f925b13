"""A policy of a few lines for tests: every context has a next-token distribution of its own, known exactly."""

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Sampling

_NUM_STATES = 4099
_MAX_POSITIONS = 1 << 16


class ToyPolicy:
    """Next-token logits looked up by a hash of all tokens and their places."""

    def __init__(self, vocab_size: int, spread: float = 2.0, seed: int = 0) -> None:
        weights = np.random.default_rng(seed)
        self._logits = weights.normal(0.0, spread, (_NUM_STATES, vocab_size))
        self._places = weights.integers(1, _NUM_STATES, _MAX_POSITIONS)
        self._draws = np.random.default_rng(seed + 1)

    def log_distribution(self, token_ids: NDArray[np.int32], sampling: Sampling) -> NDArray[np.float64]:
        """Return the log-probability of each next token as it is sampled; greedy counts as temperature 1."""
        state = int(((token_ids.astype(np.int64) + 1) * self._places[: len(token_ids)]).sum()) % _NUM_STATES
        logits = self._logits[state] / (sampling.temperature or 1.0)
        order = np.argsort(-logits)
        probabilities = np.exp(logits[order] - logits.max())
        probabilities /= probabilities.sum()
        kept = np.cumsum(probabilities) - probabilities < sampling.top_p
        kept &= probabilities >= sampling.min_p * probabilities[0]
        if sampling.top_k > 0:
            kept[sampling.top_k :] = False
        result = np.full(len(logits), -np.inf)
        result[order[kept]] = np.log(probabilities[kept] / probabilities[kept].sum())
        return result

    def sample(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return `max_tokens` sampled ids and their logprobs."""
        draws = self._draws if sampling.seed is None else np.random.default_rng(sampling.seed)
        token_ids, logprobs = prompt_ids, []
        for _ in range(sampling.max_tokens):
            log_p = self.log_distribution(token_ids, sampling)
            chosen = log_p.argmax() if sampling.temperature == 0 else draws.choice(len(log_p), p=np.exp(log_p))
            token_ids = np.append(token_ids, np.int32(chosen))
            logprobs.append(log_p[chosen])
        return token_ids[len(prompt_ids) :], np.minimum(np.asarray(logprobs, np.float32), 0.0)

    def score(self, token_ids: NDArray[np.int32], temperature: float = 1.0) -> NDArray[np.float32]:
        """Return the logprob of each token after those before it; NaN for the first."""
        sampling = Sampling(1, temperature=temperature)
        logprobs = [
            self.log_distribution(token_ids[:end], sampling)[token_ids[end]] for end in range(1, len(token_ids))
        ]
        return np.minimum(np.asarray([np.nan, *logprobs], np.float32), 0.0)
