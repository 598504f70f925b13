"""Options of `turngym serve-rm`."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class ServedModelOptions:
    """What gives the rewards."""

    model_name_or_path: str | None = None
    """A Hugging Face folder or hub name of a sequence classifier of one label."""
    normalize_enable: bool = False
    """Subtract the mean and divide by the deviation that the model's configuration holds."""


@dataclass(frozen=True)
class ServedDtypeOptions:
    """How the model is loaded."""

    value_head_prefix: str = "score"
    """Name of the model's head."""
    param_dtype: Literal["bf16", "fp16", "fp32"] | None = None
    """Dtype of the weights; by default bf16 on a GPU and fp32 without one."""


@dataclass(frozen=True)
class ServedTextOptions:
    """What is read of a text."""

    max_len: int = 2048
    """Most tokens of a text; a longer one is cut where its tokenizer says (mostly at the end), and marked."""


@dataclass(frozen=True)
class ServeRmOptions:
    """Serve a reward model over HTTP."""

    reward: ServedModelOptions = field(default_factory=ServedModelOptions)
    """The reward model."""
    ds: ServedDtypeOptions = field(default_factory=ServedDtypeOptions)
    """How it is loaded."""
    data: ServedTextOptions = field(default_factory=ServedTextOptions)
    """Texts."""
    host: str = "0.0.0.0"
    """Address to listen on; 0.0.0.0 is every one of this machine."""
    port: int = 5000
    """Port to listen on; 0 takes a free one and says which."""
    batch_size: int | None = None
    """Most texts in one forward pass; by default as many as max_tokens has room for."""
    max_tokens: int = 16_384
    """Most tokens in one forward pass; texts of several requests share it, and a longer one goes alone."""
    timeout_s: float = 170.0
    """Deadline of one request; OpenRLHF's clients and ours give up after 180 s."""
