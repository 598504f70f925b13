"""Our methods in vLLM's worker, with vLLM's own parts around them."""

from types import SimpleNamespace

import pytest
import torch

from turngym.executors.engines.vllm_worker import WeightReceiver

pytestmark = pytest.mark.slow  # imports vLLM


@pytest.mark.parametrize("sampler", [None, "second"])
def test_a_runner_without_this_sampler_goes_on_as_it_was(sampler):
    if sampler == "second":
        sampler = pytest.importorskip("vllm.v1.worker.gpu.sample.sampler").Sampler
        assert not hasattr(sampler, "gather_logprobs")
    receiver = WeightReceiver()
    receiver.model_runner = SimpleNamespace(sampler=sampler)
    receiver.turngym_skip_ranks()
    assert receiver.model_runner.sampler is sampler


def test_logprobs_are_vllms_own_without_their_ranks():
    from vllm.v1.sample.sampler import Sampler

    logprobs_BV = torch.randn(5, 300).log_softmax(-1)
    token_ids = torch.tensor([0, 299, 7, 7, 150])
    receiver = WeightReceiver()
    receiver.model_runner = SimpleNamespace(sampler=Sampler(logprobs_mode="processed_logprobs"))
    receiver.turngym_skip_ranks()
    for num_top in (0, 3):
        ours = receiver.model_runner.sampler.gather_logprobs(logprobs_BV, num_top, token_ids)
        theirs = Sampler.gather_logprobs(logprobs_BV, num_top, token_ids)
        assert torch.equal(ours.logprob_token_ids, theirs.logprob_token_ids)
        assert torch.equal(ours.logprobs, theirs.logprobs)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine is other is None or (mine.dtype, mine.shape) == (other.dtype, other.shape)
        assert torch.equal(ours.selected_token_ranks, theirs.selected_token_ranks * (num_top > 0))
