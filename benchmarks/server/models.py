"""Models for the comparison with vLLM's server; none ends an answer by itself, so that both sides sample as much."""

import json
import shutil
from pathlib import Path

from transformers import AutoConfig, AutoModelForCausalLM

ENDS = ("eos_token_id", "eos_token")
FILES = ("config.json", "generation_config.json", "tokenizer_config.json")


def endless(model: str, folder: Path) -> str:
    """Return a copy of a model that has no end of sequence."""
    made = folder / "endless"
    shutil.copytree(model, made, copy_function=_linked)
    for name in FILES:
        if (made / name).exists():
            settings = json.loads((made / name).read_text())
            (made / name).unlink()
            (made / name).write_text(json.dumps({key: value for key, value in settings.items() if key not in ENDS}))
    return str(made)


def tiny(model: str, folder: Path) -> str:
    """Return a model with another's tokenizer and so few weights that the server is most of the work."""
    made = folder / "tiny"
    config = AutoConfig.from_pretrained(model)
    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config.update({**small, "num_key_value_heads": 2, "head_dim": 32})
    AutoModelForCausalLM.from_config(config, dtype="bfloat16").save_pretrained(made)
    for path in Path(model).iterdir():
        if not (made / path.name).exists() and "safetensors" not in path.name:
            shutil.copy(path, made)
    return str(made)


def _linked(source: str, target: str) -> None:
    Path(target).symlink_to(source)
