"""What one request to vLLM says, and what comes of its answer; vLLM's own types stand here only."""

# T tokens, K likeliest

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.base import Completion, RequestRefusedError, Sampling, StopReason, TopLogprobs
from ...agents.images import Images
from ...agents.shape import Grammar, GrammarKind, Shape
from ...errors import EngineError
from .version_spans import VersionSpans
from .vllm_images import PicturePrompt


def sampling_params(sampling: Sampling) -> Any:
    """Return vLLM's SamplingParams for one completion with the logprob of each sampled token.

    Raises:
        RequestRefusedError: vLLM does not sample so.
    """
    from vllm.exceptions import VLLMValidationError

    try:
        return _sampling_params(sampling)
    except (ValueError, VLLMValidationError) as error:  # the latter is a ValueError up to 0.22 only
        raise RequestRefusedError(f"vLLM refused how to sample: {error}") from error


def _sampling_params(sampling: Sampling) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    shape = {} if sampling.shape is None else _shape_params(sampling.shape, sampling.max_tokens)
    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=max(sampling.top_k, 0),
        min_p=sampling.min_p,
        stop=list(sampling.stop),
        stop_token_ids=list(sampling.stop_token_ids),
        seed=sampling.seed,
        logprobs=sampling.num_top_logprobs,
        flat_logprobs=True,
        detokenize=bool(sampling.stop),
        skip_special_tokens=False,  # a stop string may be one, such as the mark that closes a tool call
        include_stop_str_in_output=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        **shape,
    )


def scoring_params() -> Any:
    """Return vLLM's SamplingParams for the logprobs of the prompt's own tokens.

    0 asks for no token beside the prompt's own. vLLM samples at least one token all the same, and leaves cached
    prefixes unread in such a request: it computes no logits where it finds keys and values.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def prompt_of(token_ids: NDArray[np.int32], salt: str, images: Images | None = None) -> Any:
    """Return vLLM's prompt; what is cached for it, its images included, serves only prompts of the same salt."""
    if images:
        return PicturePrompt(token_ids, images, salt)
    from vllm.inputs import tokens_input

    return tokens_input(token_ids.tolist(), cache_salt=salt)


def completion_of(output: Any, spans: VersionSpans) -> Completion:
    """Return what was sampled.

    Raises:
        EngineError: vLLM says that it failed.
    """
    final = output.outputs[0]
    if final.finish_reason == "error":
        raise EngineError(f"vLLM failed to answer {output.request_id!r}; its log says why")
    token_ids = np.asarray(final.token_ids, np.int32)
    sampled, top = (None, None) if final.logprobs is None else _logprobs_of(final.logprobs)
    return Completion(
        token_ids=token_ids,
        logprobs=sampled,
        versions=spans.versions(len(token_ids)),
        stop_reason=StopReason(final.finish_reason or "abort"),
        top=top,
    )


def _logprobs_of(flat: Any) -> tuple[NDArray[np.float32], TopLogprobs | None]:
    """Return the logprob of each sampled token, and of the likeliest: at each place vLLM puts them behind it."""
    logprobs = np.asarray(flat.logprobs, np.float32)
    num_places, width = len(flat.start_indices), len(logprobs) // max(1, len(flat.start_indices))
    if width <= 1:
        return logprobs, None
    table_TW = logprobs.reshape(num_places, width)
    ids_TW = np.asarray(flat.token_ids, np.int32).reshape(num_places, width)
    return table_TW[:, 0].copy(), TopLogprobs(ids_TW[:, 1:].copy(), table_TW[:, 1:].copy())


def _shape_params(shape: Shape, max_tokens: int) -> dict[str, Any]:
    """Return what vLLM's SamplingParams takes for a shape."""
    params: dict[str, Any] = {
        "presence_penalty": shape.presence_penalty,
        "frequency_penalty": shape.frequency_penalty,
        "repetition_penalty": shape.repetition_penalty,
        "logit_bias": dict(shape.logit_bias) or None,
        "bad_words": list(shape.bad_words) or None,
        "min_tokens": min(shape.min_tokens, max_tokens),
    }
    if shape.grammar is not None:
        params["structured_outputs"] = _structured(shape.grammar)
    return params


def _structured(grammar: Grammar) -> Any:
    from vllm.sampling_params import StructuredOutputsParams

    named: dict[GrammarKind, tuple[str, Any]] = {
        GrammarKind.JSON_SCHEMA: ("json", grammar.text),
        GrammarKind.JSON_OBJECT: ("json_object", True),
        GrammarKind.REGEX: ("regex", grammar.text),
        GrammarKind.EBNF: ("grammar", grammar.text),
        GrammarKind.TAGS: ("structural_tag", grammar.text),
    }
    name, value = ("choice", grammar.value) if grammar.kind is GrammarKind.CHOICE else named[grammar.kind]
    return StructuredOutputsParams(**{name: value})


def scores_of(output: Any, token_ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the logprob of each token of a prompt, float32 [T]; NaN for the first one.

    Raises:
        EngineError: They are not those of these tokens, one each.
    """
    flat = output.prompt_logprobs
    scored = [] if flat is None else flat.token_ids
    if not np.array_equal(scored, token_ids[1:]):
        raise EngineError(
            f"vLLM gave logprobs of {len(scored)} tokens of the prompt, wanted its own {len(token_ids) - 1} after "
            "the first; were some found in a prefix cache?"
        )
    scores_T = np.full(len(token_ids), np.nan, np.float32)
    scores_T[1:] = flat.logprobs
    if not np.isfinite(scores_T[1:]).all():
        bad = 1 + int(np.flatnonzero(~np.isfinite(scores_T[1:]))[0])
        raise EngineError(
            f"vLLM gave logprob {scores_T[bad]} for token {bad} of a prompt; is the model sound in its dtype?"
        )
    return scores_T
