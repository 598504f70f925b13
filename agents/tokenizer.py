"""Text to token ids and back, exactly: no added special tokens, no cleaned-up spaces."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# How far back to look for a special token that the next piece of text can be anchored to.
_ANCHOR_TOKENS = 8


def load_tokenizer(path: str) -> "PreTrainedTokenizerBase":
    """Load the tokenizer of a model folder or hub name."""
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        what = "is no folder here" if not Path(path).exists() else "holds no tokenizer that transformers can load"
        raise ConfigError(f"cannot load the tokenizer of {path!r}: it {what}; {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(f"{path!r} loads as {type(tokenizer).__name__}; wanted a Hugging Face tokenizer")
    return tokenizer


class Codec:
    """One tokenizer, as agents use it."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.items()
        self._special = frozenset(tokenizer.all_special_ids) | {index for index, token in added if token.special}

    def encode(self, text: str) -> NDArray[np.int32]:
        """Tokenise text; special tokens written out in it become their ids, none is added."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        return np.asarray(ids, dtype=np.int32)

    def encode_after(self, before: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        """Tokenise text that follows `before`, as if both had been tokenised together.

        Some tokenizers treat the beginning of a text in a way of their own (they put a space before
        it), so the text is tokenised behind the nearest special token where there is one.
        """
        tail = before[-_ANCHOR_TOKENS:]
        anchors = [place for place, token_id in enumerate(tail.tolist()) if token_id in self._special]
        if not anchors or not text:
            return self.encode(text)
        anchor = tail[anchors[-1] :]
        together = self.encode(self.decode(anchor) + text)
        # Where the text melts into its anchor, the anchor's tokens stand: the model has seen them.
        return together[len(anchor) :] if np.array_equal(together[: len(anchor)], anchor) else self.encode(text)

    def decode(self, token_ids: NDArray[np.int32], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids; bytes that are no UTF-8 become U+FFFD."""
        text = self._tokenizer.decode(
            token_ids.tolist(), skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return cast(str, text)

    def num_special(self, token_ids: NDArray[np.int32], most: int) -> int:
        """Count the special tokens that these ids begin with, up to `most`."""
        count = 0
        while count < min(most, len(token_ids)) and int(token_ids[count]) in self._special:
            count += 1
        return count
