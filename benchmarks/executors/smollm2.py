"""SmolLM2-135M-Instruct for the benchmarks beside this file: its folder, or only its tokenizer."""

import subprocess
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from turngym.agents.tokenizer import load_tokenizer

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def model_folder() -> str:
    """Return the model's folder, made first where it is not there yet."""
    command = [sys.executable, str(SCRIPTS / "fetch_smollm2.py")]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def tokenizer() -> PreTrainedTokenizerBase:
    """Return the model's tokenizer, or where it is not there one whose tokens are bytes, with ChatML."""
    sys.path.insert(0, str(SCRIPTS))
    from fetch_smollm2 import default_folder

    if default_folder().exists():
        return load_tokenizer(str(default_folder()))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    bytes_only.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<|im_end|>", chat_template=CHATML)
