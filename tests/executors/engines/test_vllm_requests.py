"""What a request to vLLM says, as vLLM's own parts read it."""

from types import SimpleNamespace

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turngym.agents.base import Sampling
from turngym.executors.engines.vllm_requests import sampling_params


@pytest.mark.slow  # importing vLLM
@pytest.mark.parametrize("is_special", [True, False])
def test_a_stop_string_may_be_a_special_token(is_special):
    """R64: so that an answer can end where it calls a tool, and no made-up result follows."""
    from vllm.v1.engine.detokenizer import IncrementalDetokenizer

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    if is_special:
        tokenizer.add_special_tokens([AddedToken("</tool_call>", special=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    params = sampling_params(Sampling(max_tokens=64, stop=("</tool_call>",)))
    names = {"request_id": "0", "external_req_id": "0", "prompt_embeds": None}
    request = SimpleNamespace(sampling_params=params, prompt_token_ids=fast.encode("a"), **names)
    reader = IncrementalDetokenizer.from_new_request(fast, request)
    ids = fast.encode("a</tool_call>")
    assert [reader.update([token], False) for token in ids] == [None] * (len(ids) - 1) + ["</tool_call>"]
