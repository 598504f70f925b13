"""A folder with a vision-language model as small as they come: Qwen2-VL, random weights, letters for tokens."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2VLConfig, Qwen2VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

PAD = "<|image_pad|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", PAD, "<|video_pad|>"]
# As Qwen2.5-VL's, without its first system message.
TEMPLATE = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}\
{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% elif 'text' in part %}{{ part.text }}\
{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
PIXELS = 28  # of the side of what becomes one token


def vision_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """Return the tokenizer: 256 bytes, and the special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=SPECIAL[0],
        eos_token="<|im_end|>",
        additional_special_tokens=[token for token in SPECIAL if token not in (SPECIAL[0], "<|im_end|>")],
        chat_template=template,
    )


def make_vision_folder(folder: Path, *, with_weights: bool = True) -> Path:
    """Write the model, its tokenizer and its processor."""
    tokenizer = vision_tokenizer()
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(min_pixels=PIXELS**2, max_pixels=16 * PIXELS**2).save_pretrained(folder)
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    text = {
        "vocab_size": 272,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "default",
            "type": "mrope",
            "mrope_section": [4, 6, 6],
            "rope_theta": 10000.0,
        },
        "bos_token_id": ids["<|im_start|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
    config = Qwen2VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids[PAD],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
        architectures=["Qwen2VLForConditionalGeneration"],
    )
    if not with_weights:
        config.save_pretrained(folder)
        return folder
    torch.manual_seed(0)
    model = Qwen2VLForConditionalGeneration(config).float()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)  # so that images matter
    model.save_pretrained(folder)
    return folder
