"""What parts are made with, from a run's options."""

from dataclasses import replace

import pytest

from turngym.config import TrainConfig
from turngym.errors import ConfigError
from turngym.executors.options import RolloutOptions, VllmOptions
from turngym.learner.options import TeacherOptions
from turngym.learner.run.engine_settings import teacher_config
from turngym.learner.run.placement import Layout

LAYOUT = Layout(1, 2, 0, 0, threads=8, engine_threads=4)


@pytest.mark.parametrize(("sampled_at", "scored_at"), [(1.0, 1.0), (0.7, 0.7), (0.0, 1.0)])
def test_a_teacher_has_room_for_a_sequence_and_the_temperature_that_was_sampled_at(sampled_at, scored_at):
    settings = replace(
        TrainConfig(),
        teacher=TeacherOptions("large", gpu_memory_utilization=0.2),
        rollout=RolloutOptions(temperature=sampled_at),
        vllm=VllmOptions(kv_cache_gib=0.25),
    )
    config = teacher_config(settings, LAYOUT)
    assert config.model == "large"
    assert config.max_context == settings.data.max_len + 1
    assert config.scoring_temperature == scored_at
    assert not config.enable_prefix_caching
    assert (config.gpu_memory_utilization, config.kv_cache_gib, config.num_threads) == (0.2, 0.25, 4)


def test_a_teacher_needs_a_model():
    with pytest.raises(ConfigError, match=r"wants --teacher\.model_name_or_path"):
        teacher_config(TrainConfig(), LAYOUT)
