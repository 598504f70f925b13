"""Text to token ids and back, exactly: no added special tokens, no cleaned-up spaces."""

from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

# How far back to look for a special token that the next piece of text can be anchored to.
_ANCHOR_TOKENS = 8
_MOST_TEXTS = 256


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
        from tokenizers.decoders import ByteLevel

        self._tokenizer = tokenizer
        self._backend = _plain_backend(tokenizer)
        added = tokenizer.added_tokens_decoder.items()
        self._skipped = frozenset(index for index, token in added if token.special)
        self._special = frozenset(tokenizer.all_special_ids) | self._skipped
        # Decoders of bytes put the texts of tokens side by side; others mind what stands before a token.
        self._is_bytes = self._backend is not None and isinstance(self._backend.decoder, ByteLevel)
        self._few: dict[tuple[int, ...], str] = {}
        self.eos_id = cast(int | None, tokenizer.eos_token_id)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Tokenise text; special tokens written out in it become their ids, none is added."""
        return np.asarray(self._encoded(text), np.int32)

    def encode_after(self, before: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        """Tokenise text that follows `before`, as if both had been tokenised together.

        Some tokenizers treat the beginning of a text in a way of their own (they put a space before
        it), so the text is tokenised behind the nearest special token where there is one.
        """
        tail = before[-_ANCHOR_TOKENS:].tolist()
        anchors = [place for place, token_id in enumerate(tail) if token_id in self._special]
        if not anchors or not text:
            return self.encode(text)
        anchor = tail[anchors[-1] :]
        together = self._encoded(self._text_of_few(anchor) + text)
        # Where the text melts into its anchor, the anchor's tokens stand: the model has seen them.
        if together[: len(anchor)] != anchor:
            return self.encode(text)
        return np.asarray(together[len(anchor) :], np.int32)

    def decode(self, token_ids: NDArray[np.int32], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return self._decoded(token_ids.tolist(), skip_special_tokens)

    def decode_few(self, token_ids: NDArray[np.int32]) -> str:
        """Return the text of a few ids that come again and again, such as the end of a turn."""
        return self._text_of_few(token_ids.tolist())

    def with_end(self, token_ids: NDArray[np.int32], num_end: int, body: str) -> str:
        """Return all text of ids, where `body` is the text of all but the last `num_end`, which are special."""
        if not num_end:
            return body
        return body + self.decode_few(token_ids[-num_end:]) if self._is_bytes else self.decode(token_ids)

    def without_special(self, token_ids: NDArray[np.int32], num_end: int, body: str) -> str:
        """Return the text of ids without special tokens; see `with_end`."""
        ids = token_ids.tolist()
        middle = len(ids) - num_end
        is_plain = self._backend is not None
        if is_plain and self._skipped.issuperset(ids[middle:]) and self._special.isdisjoint(ids[:middle]):
            return body
        return self._decoded(ids, True)

    def num_special(self, token_ids: NDArray[np.int32], most: int) -> int:
        """Count the special tokens that these ids begin with, up to `most`."""
        count = 0
        while count < min(most, len(token_ids)) and int(token_ids[count]) in self._special:
            count += 1
        return count

    def _encoded(self, text: str) -> list[int]:
        backend, tokenizer = self._backend, self._tokenizer
        if (
            backend is None
            or backend.truncation is not None
            or backend.padding is not None
            or backend.encode_special_tokens != tokenizer.split_special_tokens
        ):
            ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)  # sets its backend right again
        else:
            ids = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return cast(list[int], ids)

    def _text_of_few(self, token_ids: list[int]) -> str:
        key = tuple(token_ids)
        text = self._few.get(key)
        if text is None:
            text = self._decoded(token_ids)
            if len(self._few) < _MOST_TEXTS:
                self._few[key] = text
        return text

    def _decoded(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        if self._backend is not None:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        text = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        return cast(str, text)


def _plain_backend(tokenizer: "PreTrainedTokenizerBase") -> "Tokenizer | None":
    """Return the tokenizer in Rust, where transformers only passes texts and ids on to it, token by token in Python."""
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    kind = type(tokenizer)
    is_plain = (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.encode is PreTrainedTokenizerBase.encode
        and kind.decode is PreTrainedTokenizerBase.decode
        and kind._encode_plus is PreTrainedTokenizerFast._encode_plus
        and kind._decode is PreTrainedTokenizerFast._decode
    )
    return tokenizer.backend_tokenizer if is_plain else None
