"""A policy of a few lines for tests: every context has a next-token distribution of its own, known exactly."""

import numpy as np
from numpy.typing import NDArray

from ...agents.base import RequestRefusedError, Sampling, TopLogprobs
from ...agents.shape import Shape

_NUM_STATES = 4099
_MAX_POSITIONS = 1 << 16


class ToyPolicy:
    """Next-token logits looked up by a hash of all tokens and their places.

    It follows penalties, biases and `min_tokens` in vLLM's order. Its tokens have no text, so that it knows neither
    grammars nor bad words.
    """

    def __init__(self, vocab_size: int, spread: float = 2.0, seed: int = 0, eos_ids: tuple[int, ...] = ()) -> None:
        weights = np.random.default_rng(seed)
        self._logits = weights.normal(0.0, spread, (_NUM_STATES, vocab_size))
        self._places = weights.integers(1, _NUM_STATES, _MAX_POSITIONS)
        self._draws = np.random.default_rng(seed + 1)
        self._eos_ids = eos_ids

    def log_distribution(
        self, token_ids: NDArray[np.int32], sampling: Sampling, num_sampled: int = 0
    ) -> NDArray[np.float64]:
        """Return the log-probability of each next token as it is sampled; greedy counts as temperature 1.

        Args:
            token_ids: Prompt and what was sampled behind it.
            sampling: How to sample.
            num_sampled: How many of the ids were sampled.

        Raises:
            RequestRefusedError: The sampling wants what depends on the text of tokens.
        """
        state = int(((token_ids.astype(np.int64) + 1) * self._places[: len(token_ids)]).sum()) % _NUM_STATES
        logits = self._logits[state]
        if sampling.shape is not None:
            logits = self._shaped(logits, sampling.shape, sampling.stop_token_ids, token_ids, num_sampled)
        logits = logits / (sampling.temperature or 1.0)
        order = np.argsort(-logits)
        probabilities = np.exp(logits[order] - logits.max())
        probabilities /= probabilities.sum()
        kept = np.cumsum(probabilities) - probabilities < sampling.top_p
        kept &= probabilities >= sampling.min_p * probabilities[0]
        if sampling.top_k > 0:
            kept[sampling.top_k :] = False
        result = np.full(len(logits), -np.inf)
        kept &= probabilities > 0
        result[order[kept]] = np.log(probabilities[kept] / probabilities[kept].sum())
        return result

    def sample(
        self, prompt_ids: NDArray[np.int32], sampling: Sampling
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Return `max_tokens` sampled ids and their logprobs."""
        draws = self._draws if sampling.seed is None else np.random.default_rng(sampling.seed)
        token_ids, logprobs = prompt_ids, list[float]()
        for _ in range(sampling.max_tokens):
            log_p = self.log_distribution(token_ids, sampling, len(logprobs))
            chosen = log_p.argmax() if sampling.temperature == 0 else draws.choice(len(log_p), p=np.exp(log_p))
            token_ids = np.append(token_ids, np.int32(chosen))
            logprobs.append(log_p[chosen])
        return token_ids[len(prompt_ids) :], np.minimum(np.asarray(logprobs, np.float32), 0.0)

    def top(
        self, prompt_ids: NDArray[np.int32], sampled_ids: NDArray[np.int32], sampling: Sampling
    ) -> TopLogprobs | None:
        """Return the likeliest tokens at each place of what was sampled; None where nobody asks."""
        if not sampling.num_top_logprobs:
            return None
        whole = np.concatenate([prompt_ids, sampled_ids])
        ends = range(len(prompt_ids), len(whole))
        rows = [self.log_distribution(whole[:end], sampling, end - len(prompt_ids)) for end in ends]
        table_TV = np.asarray(rows).reshape(len(rows), self._logits.shape[1])
        ids_TK = np.argsort(-table_TV, axis=1)[:, : sampling.num_top_logprobs]
        return TopLogprobs(ids_TK.astype(np.int32), np.take_along_axis(table_TV, ids_TK, 1).astype(np.float32))

    def _shaped(
        self,
        logits: NDArray[np.float64],
        shape: Shape,
        stop_ids: tuple[int, ...],
        token_ids: NDArray[np.int32],
        num_sampled: int,
    ) -> NDArray[np.float64]:
        if shape.grammar is not None or shape.bad_words:
            raise RequestRefusedError(
                "the toy policy's tokens have no text, so that it follows no grammar and knows no bad_words; "
                "leave them out, or write a script that answers such requests"
            )
        outside = [id_ for id_, _ in shape.logit_bias if id_ >= len(logits)]
        if outside:
            raise RequestRefusedError(f"logit_bias names token {outside[0]}, the toy policy has {len(logits)}")
        logits = logits.copy()
        for id_, bias in shape.logit_bias:
            logits[id_] += bias
        if num_sampled < shape.min_tokens:
            logits[[id_ for id_ in (*self._eos_ids, *stop_ids) if id_ < len(logits)]] = -np.inf
        held = np.unique(token_ids[token_ids < len(logits)])
        factor = np.where(logits[held] > 0, 1 / shape.repetition_penalty, shape.repetition_penalty)
        logits[held] *= factor
        counts = np.bincount(token_ids[len(token_ids) - num_sampled :], minlength=len(logits))
        result: NDArray[np.float64] = logits - shape.frequency_penalty * counts - shape.presence_penalty * (counts > 0)
        return result

    def score(self, token_ids: NDArray[np.int32], temperature: float = 1.0) -> NDArray[np.float32]:
        """Return the logprob of each token after those before it; NaN for the first."""
        sampling = Sampling(1, temperature=temperature)
        logprobs = [
            self.log_distribution(token_ids[:end], sampling)[token_ids[end]] for end in range(1, len(token_ids))
        ]
        return np.minimum(np.asarray([np.nan, *logprobs], np.float32), 0.0)
