"""Tokenizers for any chat template: a tiny byte-level BPE that knows the template's special tokens."""

import re
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from turngym.agents import Completion, Sampling, StopReason

SAMPLING = Sampling(max_tokens=64)
SPECIAL = re.compile(
    r"<[|\uff5c][^<>\s'\"{}]*?[|\uff5c]>|<\|[a-z_]+>|<[a-z_]+\|>|</?s>|<(?:start|end)_of_[a-z]+>|\[gMASK\]|<sop>"
)
CORPUS = ["The quick brown fox is asked what the answer is.", "I am good! What is your name? How are you?"] * 4


@lru_cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer.to_str()


def _tokenizer_of(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer.from_str(_trained())
    special = ["<bos>", "<eos>", *sorted(set(SPECIAL.findall(template or "")))]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", chat_template=template
    )


def _completion_of(token_ids: list[int], *, is_cut: bool = False, version: int = 0) -> Completion:
    return Completion(
        token_ids=np.asarray(token_ids, np.int32),
        logprobs=np.full(len(token_ids), -0.5, np.float32),
        versions=np.full(len(token_ids), version, np.int32),
        stop_reason=StopReason.LENGTH if is_cut else StopReason.STOP,
    )


@pytest.fixture
def tokenizer_of() -> Callable[[str | None], PreTrainedTokenizerFast]:
    """Build a tokenizer around the text of a chat template."""
    return _tokenizer_of


@pytest.fixture
def completion_of() -> Callable[..., Completion]:
    """Make a completion of token ids, as an engine would return it."""
    return _completion_of


@pytest.fixture
def template_text() -> Callable[[str], str]:
    """Read one of the chat templates of public models that the installed trl ships."""
    return lambda name: files("trl").joinpath("chat_templates", f"{name}.jinja").read_text(encoding="utf-8")


@pytest.fixture
def sampling() -> Sampling:
    return SAMPLING
