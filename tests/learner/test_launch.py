"""What the processes of a run are refused for, once the machine is known."""

import pytest

from turngym.config import parse_train
from turngym.errors import ConfigError
from turngym.learner.launch import check_shares


def test_engines_that_want_more_than_their_gpu_are_refused():
    teacher = "--teacher.gpu_memory_utilization 0.2 --teacher.num_engines"
    check_shares(parse_train(f"{teacher} 2".split()))  # 0.4 + 2 * 0.2
    with pytest.raises(
        ConfigError, match=r"--vllm\.gpu_memory_utilization 0\.4 and --teacher.* are 1\.00 of the one GPU"
    ):
        check_shares(parse_train(f"{teacher} 3".split()))
