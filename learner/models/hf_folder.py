"""Writes trained weights as a Hugging Face folder that loads anywhere."""

import shutil
from pathlib import Path
from typing import Literal

import torch

from .vision import policy_class

_IF_THERE = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
PROCESSOR_FILES = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")


def save_hf(
    folder: Path, source: str, tensors: dict[str, torch.Tensor], *, kind: Literal["policy", "value"] = "policy"
) -> None:
    """Write config, generation config, tokenizer of `source` and these weights, replacing an older folder.

    A value model becomes a sequence classifier of one label. The folder appears whole or not at all.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
    from transformers.initialization import no_init_weights
    from transformers.utils import cached_file

    config = AutoConfig.from_pretrained(source)
    auto_class = policy_class(config)
    if kind == "value":
        config.num_labels, auto_class = 1, AutoModelForSequenceClassification
    dtype = next(iter(tensors.values())).dtype
    with no_init_weights(), torch.device("meta"):
        model = auto_class.from_config(config, dtype=dtype)
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    unset = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    if unset:
        raise ValueError(f"{len(unset)} parameters of {source!r} have no trained weights, among them {unset[:3]}")
    temporary = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    AutoTokenizer.from_pretrained(source).save_pretrained(temporary)
    generation_config = Path(source) / "generation_config.json"
    if generation_config.exists():
        shutil.copy(generation_config, temporary)
    for name in PROCESSOR_FILES:
        if (place := cached_file(source, name, **_IF_THERE)) is not None:
            shutil.copy(place, temporary / name)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
