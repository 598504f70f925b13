"""What vLLM is started with for adapters, without starting it."""

import pytest

from turngym.executors.engines.vllm_adapter import Adapter


@pytest.mark.parametrize(("rank", "place"), [(1, 1), (4, 8), (8, 8), (33, 64), (257, 320), (600, 600)])
def test_a_rank_gets_the_next_larger_place(rank, place):
    assert Adapter(rank, 16).engine_arguments() == {"enable_lora": True, "max_loras": 1, "max_lora_rank": place}
