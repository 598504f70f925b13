"""What a reward model reads of an episode, and that its score is transformers' own."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast

from turngym.agents.base import Completion, Sampling, StopReason
from turngym.agents.sequence import Sequence, SequenceBuilder
from turngym.envs.task import Task
from turngym.errors import ConfigError, TrajectoryError
from turngym.executors.episodes.trajectory import EndReason, Failure, FailureKind, Trajectory, TurnEnd
from turngym.learner.models.attention import PACKED
from turngym.learner.models.value_model import load_value_model, token_values
from turngym.learner.rewards.scoring import (
    Normalization,
    last_values,
    model_scores,
    normalization,
    recoding,
    reward_batch,
    rows_batch,
)


def sequence(context: list[int], sampled: list[int]) -> Sequence:
    builder = SequenceBuilder()
    builder.add_context(context, -1)
    count = len(sampled)
    builder.add_completion(
        Completion(
            np.array(sampled, np.int32), np.full(count, -1, np.float32), np.zeros(count, np.int32), StopReason.STOP
        ),
        Sampling(9),
        0,
    )
    return builder.build()


def attempt(*sequences: Sequence, failed: bool = False) -> Trajectory:
    return Trajectory(
        task=Task("t"),
        attempt=0,
        sequences=sequences,
        messages=(),
        rewards_per_turn=np.zeros(1),
        turn_ends=(TurnEnd.STOP,),
        end_reason=EndReason.FAILED if failed else EndReason.TERMINATED,
        failure=Failure(FailureKind.ENV, "broke", 0) if failed else None,
    )


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_labels=1,
        pad_token_id=0,
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


def test_the_last_sequence_of_each_attempt_that_can_be_scored_is_one_row():
    trajectories = [
        attempt(sequence([1, 2], [3]), sequence([4], [5, 6])),
        attempt(sequence([7], [8]), failed=True),
        attempt(),
        attempt(SequenceBuilder().build()),
        attempt(sequence([9], [10, 11])),
        attempt(sequence([1, 2, 3], [4])),
    ]
    batch = reward_batch(trajectories, None, max_tokens=3)
    assert batch.token_ids.tolist() == [4, 5, 6, 9, 10, 11]
    assert batch.attempts.tolist() == [0, 4]  # the last is longer than the model reads: half a text has no score
    assert not batch.is_action.any()
    scores = model_scores(batch, np.arange(6) * 10.0, 6)
    assert scores.tolist()[0] == 20
    assert scores.tolist()[4] == 50
    assert np.isnan(scores[[1, 2, 3, 5]]).all()


def test_a_step_without_anything_to_score():
    batch = reward_batch([attempt(), attempt(failed=True)], None, max_tokens=8)
    assert (batch.num_tokens, batch.num_sequences) == (0, 0)
    assert np.isnan(model_scores(batch, [], 2)).all()


def test_scores_are_normalised_by_the_configuration():
    batch = rows_batch([np.array([1, 2], np.int32), np.array([3], np.int32)])
    assert model_scores(batch, [9.0, 5.0, 2.0], 2, Normalization(mean=1.0, std=2.0)).tolist() == [2, 0.5]
    config = LlamaConfig()
    config.mean, config.std = 1, 2.0
    assert normalization(config, "m") == Normalization(1.0, 2.0)


@pytest.mark.parametrize(
    "moments", [{}, {"mean": 1.0}, {"mean": 0.0, "std": 0.0}, {"mean": float("nan"), "std": 1.0}, {"mean": "1"}]
)
def test_a_configuration_without_moments_cannot_normalise(moments):
    config = LlamaConfig()
    for name, value in moments.items():
        setattr(config, name, value)
    with pytest.raises(ConfigError, match=r"--reward\.normalize_enable wants .* in the configuration of 'm'"):
        normalization(config, "m")


def test_one_value_per_token():
    with pytest.raises(TrajectoryError, match=r"each of 2 tokens wanted, got shape \(3,\)"):
        last_values(rows_batch([np.array([1, 2], np.int32)]), np.zeros(3))


def test_scores_equal_transformers_own(classifier):
    """One row at a time, unpadded; token 0, the padding, ends some rows and is read like any other."""
    rng = np.random.default_rng(0)
    trajectories = [attempt(sequence(rng.integers(1, 50, 4).tolist(), [*rng.integers(1, 50, n), 0])) for n in range(6)]
    model = load_value_model(str(classifier), dtype=torch.float32, attention=PACKED).eval()
    batch = reward_batch(trajectories, None, max_tokens=100)
    with torch.inference_mode():
        scores = model_scores(batch, token_values(model, batch, "cpu").numpy(), 6)
    plain = LlamaForSequenceClassification.from_pretrained(classifier).eval()
    for trajectory, score in zip(trajectories, scores, strict=True):
        ids = torch.tensor(trajectory.sequences[-1].token_ids.tolist())[None]
        plain.config.pad_token_id = None  # otherwise the score is that of the token before the padding
        with torch.inference_mode():
            assert score == pytest.approx(plain(ids).logits.item(), abs=1e-5)


def test_tokens_of_another_vocabulary_are_recoded_by_their_text(tiny_model):
    policy = AutoTokenizer.from_pretrained(tiny_model)
    assert recoding(policy, AutoTokenizer.from_pretrained(tiny_model)) is None
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    backward = Tokenizer(models.BPE({character: index for index, character in enumerate(alphabet)}, []))
    backward.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backward.decoder = decoders.ByteLevel()
    reward = PreTrainedTokenizerFast(tokenizer_object=backward)
    recode = recoding(policy, reward)
    assert recode is not None
    text = "<|start|>user:żółw<|end|>"
    made = attempt(sequence(policy.encode("<|start|>user:"), policy.encode("żółw<|end|>")))
    batch = reward_batch([made], recode, max_tokens=100)
    assert batch.token_ids.tolist() == reward.encode(text)
    assert reward.decode(batch.token_ids) == text
