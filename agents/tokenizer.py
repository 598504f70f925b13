"""Text to token ids and back, exactly: no added special tokens, no cleaned-up spaces."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

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


class Said(NamedTuple):
    """A completion as text.

    Attributes:
        num_end: How many special tokens it ends with.
        body: What stands before those, special tokens kept.
        plain: All of it without special tokens.
        raw: All of it.
    """

    num_end: int
    body: str
    plain: str
    raw: str


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
        is_bytes = self._backend is not None and isinstance(self._backend.decoder, ByteLevel)
        self._bytes = _TokenBytes(self._backend) if self._backend is not None and is_bytes else None
        self._few: dict[tuple[int, ...], str] = {}
        self._heads: dict[str, _Head] = {}
        self.eos_id = cast(int | None, tokenizer.eos_token_id)

    @property
    def num_tokens(self) -> int:
        """How many ids there are."""
        return len(self._tokenizer)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Tokenise text; special tokens written out in it become their ids, none is added."""
        return np.asarray(self._encoded(text), np.int32)

    def encode_first(self, head: str, rest: str) -> NDArray[np.int32]:
        """Tokenise `head + rest`; the head, such as a system message that many prompts begin with, only once."""
        known = self._heads.get(head)
        if known is None:
            known = self._head(head)
            if len(self._heads) < _MOST_TEXTS:
                self._heads[head] = known
        ids = self.encode_after(known.ids, known.tail + rest)
        return np.concatenate([known.ids, ids]) if len(known.ids) else ids

    def encode_after(self, before: NDArray[np.int32], text: str) -> NDArray[np.int32]:
        """Tokenise text that follows `before`, as if both had been tokenised together.

        Some tokenizers treat the beginning of a text in a way of their own (they put a space before
        it), so the text is tokenised behind the nearest special token where there is one.
        """
        anchor = self._anchor(before[-_ANCHOR_TOKENS:].tolist())
        if not anchor or not text:
            return self.encode(text)
        together = self._encoded(self._text_of_few(anchor) + text)
        # Where the text melts into its anchor, the anchor's tokens stand: the model has seen them.
        if together[: len(anchor)] != anchor:
            return self.encode(text)
        return np.asarray(together, np.int32)[len(anchor) :]

    def decode(self, token_ids: NDArray[np.int32], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return self._decoded(token_ids.tolist(), skip_special_tokens)

    def names(self, token_ids: NDArray[np.int32]) -> list[str]:
        """Return token ids as the vocabulary writes them."""
        return cast(list[str], self._tokenizer.convert_ids_to_tokens(token_ids.tolist()))

    def decode_few(self, token_ids: NDArray[np.int32]) -> str:
        """Return the text of a few ids that come again and again, such as the end of a turn."""
        return self._text_of_few(token_ids.tolist())

    def said(self, token_ids: NDArray[np.int32], most_end: int) -> Said:
        """Return the text of a completion, up to `most_end` special tokens taken for its end; decoded once."""
        ids = token_ids.tolist()
        middle = len(ids)
        while middle > max(len(ids) - most_end, 0) and ids[middle - 1] in self._special:
            middle -= 1
        before, end = ids[:middle], ids[middle:]
        body = raw = self._decoded(before)
        if end:
            raw = body + self._text_of_few(end) if self._bytes is not None else self._decoded(ids)
        is_plain = self._backend is not None and self._skipped.issuperset(end) and self._special.isdisjoint(before)
        return Said(len(end), body, body if is_plain else self._decoded(ids, True), raw)

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

    def _anchor(self, ids: list[int]) -> list[int]:
        """Return the ids from the last special token on; none where there is none."""
        place = len(ids) - 1
        while place >= 0 and ids[place] not in self._special:
            place -= 1
        return ids[place:] if place >= 0 else []

    def _head(self, text: str) -> "_Head":
        """Part a text behind its last special token, if what follows that is tokenised as if nothing stood before."""
        ids = self._encoded(text)
        anchor = self._anchor(ids)
        tail = self._decoded(anchor[1:])
        from_anchor = self._decoded(anchor[:1]) + tail
        if not anchor or not text.endswith(from_anchor) or self._encoded(from_anchor) != anchor:
            return _Head(np.empty(0, np.int32), text)
        return _Head(np.asarray(ids[: len(ids) - len(anchor) + 1], np.int32), tail)

    def _text_of_few(self, token_ids: list[int]) -> str:
        key = tuple(token_ids)
        text = self._few.get(key)
        if text is None:
            text = self._decoded(token_ids)
            if len(self._few) < _MOST_TEXTS:
                self._few[key] = text
        return text

    def _decoded(self, ids: list[int], skip_special_tokens: bool = False) -> str:
        if self._bytes is not None:
            if skip_special_tokens:
                ids = [token_id for token_id in ids if token_id not in self._skipped]
            return b"".join(map(self._bytes.__getitem__, ids)).decode("utf-8", "replace")
        if self._backend is not None:
            return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        text = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        return cast(str, text)


class _Head(NamedTuple):
    """The beginning of a text: its ids, and what is still to be tokenised with the rest."""

    ids: NDArray[np.int32]
    tail: str


class _TokenBytes(dict[int, bytes]):
    """The bytes that tokens stand for, where a decoder only joins them; each is looked up once."""

    def __init__(self, backend: "Tokenizer") -> None:
        super().__init__()
        self._backend = backend

    def __missing__(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) or ""  # an id that stands for nothing decodes to nothing
        try:
            piece = bytes(_BYTE_OF[letter] for letter in token)
        except KeyError:  # an added token, whose text is no code for bytes
            piece = token.encode()
        self[token_id] = piece
        return piece


def _byte_of() -> dict[str, int]:
    """Return which byte a letter stands for in byte-level tokens: printable ones for themselves, then the others."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF = _byte_of()


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
    return cast("Tokenizer", tokenizer.backend_tokenizer) if is_plain else None
