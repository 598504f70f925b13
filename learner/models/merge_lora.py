"""`turngym merge-lora`: a base model and an adapter in peft's format become one Hugging Face folder."""

import argparse
import json
import shutil
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import ConfigError

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
WEIGHTS = "adapter_model.safetensors"


def main(arguments: Sequence[str]) -> int:
    """Run the command; --help needs no torch."""
    options = _parser().parse_args(arguments)
    merge_lora(
        options.model_path,
        options.lora_path,
        options.output_path,
        is_reward_model=options.is_rm,
        param_dtype=options.param_dtype,
    )
    return 0


def merge_lora(
    model_path: str, lora_path: str, output_path: str, *, is_reward_model: bool = False, param_dtype: str = "bf16"
) -> None:
    """Write the merged model with its tokenizer, computed in float32 and rounded once to `param_dtype`.

    The folder appears whole or not at all.

    Args:
        model_path: The base model: a Hugging Face folder or hub name.
        lora_path: A folder with adapter_config.json and adapter_model.safetensors.
        output_path: The folder to write; must be empty or absent.
        is_reward_model: Whether it is a sequence classifier, with the head that the adapter or the base brings.
        param_dtype: Dtype of the merged weights: bf16, fp16 or fp32.

    Raises:
        ConfigError: A file is missing, the adapter is for another model, or no head is to be found.
    """
    import torch

    adapter, output = Path(lora_path), Path(output_path)
    _check_paths(adapter, output)
    settings = json.loads((adapter / "adapter_config.json").read_text())
    made_for = settings.get("base_model_name_or_path")
    if made_for and made_for != model_path:
        print(f"the adapter was made for {made_for!r}; merging it into {model_path!r}", file=sys.stderr)
    base, has_head = _load_base(model_path, is_reward_model)
    if is_reward_model and not has_head and not _brings_head(settings):
        raise ConfigError(
            f"--is_rm: neither {model_path!r} nor {lora_path!r} has a trained head, so scores would be random; "
            "a reward model's adapter names its head in modules_to_save"
        )
    merged = _merge(base, adapter, model_path).to(getattr(torch, DTYPES[param_dtype]))
    _write(merged, model_path, output)
    print(f"{output_path} holds {model_path} with {lora_path} merged into it, in {param_dtype}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="turngym merge-lora", description="Merge a LoRA adapter into its base model.", allow_abbrev=False
    )
    parser.add_argument("--model_path", required=True, help="base model: a Hugging Face folder or hub name")
    parser.add_argument("--lora_path", required=True, help="folder of the adapter, as peft saves it")
    parser.add_argument("--output_path", required=True, help="folder to write")
    parser.add_argument("--is_rm", action="store_true", help="the model is a reward model: a sequence classifier")
    parser.add_argument(
        "--ds.param_dtype",
        "--param_dtype",
        dest="param_dtype",
        choices=sorted(DTYPES),
        default="bf16",
        help="dtype of the merged weights (default: bf16)",
    )
    return parser


def _check_paths(adapter: Path, output: Path) -> None:
    if not adapter.is_dir():
        raise ConfigError(f"--lora_path: there is no folder {str(adapter)!r}")
    if missing := [name for name in ("adapter_config.json", WEIGHTS) if not (adapter / name).is_file()]:
        raise ConfigError(f"--lora_path: {str(adapter)!r} holds no {' and no '.join(missing)}; is it an adapter?")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output_path: {str(output)!r} exists and is not an empty folder; name another")


def _load_base(model_path: str, is_reward_model: bool) -> tuple[Any, bool]:  # Any: transformers' models are open
    """Return the base model in float32, and whether every one of its weights came from the folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    try:
        if not is_reward_model:
            return AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32), True
        model, info = AutoModelForSequenceClassification.from_pretrained(
            model_path, dtype=torch.float32, num_labels=1, output_loading_info=True
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"--model_path: cannot load a model from {model_path!r}: {error}") from error
    return model, not info["missing_keys"]


def _brings_head(settings: dict[str, Any]) -> bool:
    return bool({"score", "classifier"} & set(settings.get("modules_to_save") or ()))


def _merge(base: Any, adapter: Path, model_path: str) -> Any:
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    try:
        settings = PeftConfig.from_pretrained(str(adapter))
        settings.task_type = None  # a language model's adapter fits the body of a reward model too
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Found missing adapter keys")  # what is an error below
            model = PeftModel.from_pretrained(base, adapter, config=settings)
    except (ValueError, RuntimeError) as error:  # no such layers, or other shapes; the first will do
        reason = " ".join(str(error).split("\n\t")[:2])
        raise ConfigError(f"--lora_path: {str(adapter)!r} does not fit {model_path!r}: {reason}") from error
    with safe_open(adapter / WEIGHTS, framework="pt") as file:
        found = set(file.keys())
    wanted = set(get_peft_model_state_dict(model))
    if found != wanted:  # peft only warns, and leaves such layers as they were
        strange, absent = sorted(found - wanted), sorted(wanted - found)
        raise ConfigError(
            f"--lora_path: the tensors of {str(adapter)!r} are not those that {model_path!r} has a place for: "
            f"{len(strange)} have none, such as {strange[:2]}; {len(absent)} are absent, such as {absent[:2]}"
        )
    return model.merge_and_unload(safe_merge=True)


def _write(model: Any, source: str, output: Path) -> None:
    from transformers import AutoTokenizer

    temporary = output.with_name(f"{output.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary)
    AutoTokenizer.from_pretrained(source).save_pretrained(temporary)
    if output.exists():
        output.rmdir()  # empty, as was checked
    temporary.rename(output)
