"""A reward model and its tokenizer: texts in, rewards out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ...agents.tokenizer import Codec, load_tokenizer
from ..models.attention import PACKED, check_context, check_packable
from ..models.dtypes import DTYPES
from ..models.value_model import load_value_model, token_values
from .scoring import Normalization, TokenIds, last_values, normalization, rows_batch
from .serve_options import ServeRmOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TextRow:
    """One text as the model reads it."""

    token_ids: TokenIds
    is_cut: bool  # the text was longer than the model may read


class TextScorer:
    """Scores rows of tokens, several in one packed forward pass.

    Args:
        model: As `load_value_model` gives it.
        tokenizer: The model's own.
        device: Where the model is.
        max_len: Most tokens of a text.
        moments: Normalise by these.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: "PreTrainedTokenizerBase",
        device: torch.device,
        max_len: int,
        moments: Normalization | None,
    ) -> None:
        self._model = model
        self._codec = Codec(tokenizer)
        self._cuts_left = tokenizer.truncation_side == "left"
        self._device = device
        self._max_len = max_len
        self._moments = moments

    def row(self, text: str) -> TextRow:
        """Tokenise a text; special tokens written out in it become their ids, none is added."""
        token_ids = self._codec.encode(text)
        kept = token_ids[-self._max_len :] if self._cuts_left else token_ids[: self._max_len]
        return TextRow(kept, len(kept) < len(token_ids))

    @torch.inference_mode()
    def score(self, rows: Sequence[TokenIds]) -> NDArray[np.float64]:
        """Return one reward per row, as the model gave it: a broken one may give NaN."""
        batch = rows_batch(rows)
        values_S = last_values(batch, token_values(self._model, batch, self._device).cpu().numpy())
        return values_S if self._moments is None else self._moments.apply(values_S)


def load_scorer(options: ServeRmOptions, path: str) -> TextScorer:
    """Load model and tokenizer, and score one token to see that the model can be run packed.

    Raises:
        ConfigError: There is no such model, it cannot be packed, or an option does not fit it.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = options.ds.param_dtype or ("bf16" if device.type == "cuda" else "fp32")
    tokenizer = load_tokenizer(path)
    model = load_value_model(
        path, head_prefix=options.ds.value_head_prefix, dtype=DTYPES[dtype], attention=PACKED
    ).eval()
    check_packable(model.config, options.data.max_len)
    check_context(model.config, options.data.max_len)
    moments = normalization(model.config, path) if options.reward.normalize_enable else None
    scorer = TextScorer(model.to(device), tokenizer, device, options.data.max_len, moments)
    scorer.score([np.zeros(1, np.int32)])
    return scorer
