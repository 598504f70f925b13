"""Values per token of a packed batch equal transformers' own, and heads are found or begun."""

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from turngym.errors import ConfigError
from turngym.learner.batch import Batch
from turngym.learner.models.attention import PACKED
from turngym.learner.models.value_model import check_head, load_value_model, token_values, values_before_actions

SMALL = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def make_batch(lengths: list[int]) -> Batch:
    rng = np.random.default_rng(0)
    total = sum(lengths)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    is_action = rng.random(total) < 0.5
    is_action[starts[:-1]] = False
    return Batch(
        token_ids=rng.integers(1, 61, total).astype(np.int32),
        is_action=is_action,
        rollout_logprobs=np.where(is_action, -1.0, np.nan).astype(np.float32),
        versions=np.where(is_action, 0, -1).astype(np.int32),
        temperatures=np.ones(total, np.float32),
        turns=np.zeros(total, np.int32),
        starts=starts,
        attempts=np.arange(len(lengths)),
        advantages=np.zeros(total, np.float32),
    )


def load(path, **options):
    return load_value_model(str(path), dtype=torch.float32, attention=PACKED, **options)


@pytest.fixture
def classifier(tmp_path):
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(LlamaConfig(**SMALL, num_labels=1)).eval()
    model.save_pretrained(tmp_path / "rm")
    return tmp_path / "rm", model


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_the_last_value_is_the_classifiers_score(kind, classifier, tmp_path):
    path, plain = classifier
    if kind == "qwen2":
        path, plain = tmp_path / "qwen", Qwen2ForSequenceClassification(Qwen2Config(**SMALL, num_labels=1)).eval()
        plain.save_pretrained(path)
    batch = make_batch([5, 9, 2, 7])
    values_N = token_values(load(path), batch, "cpu")
    assert values_N.shape == (23,)
    for start, end in zip(batch.starts[:-1], batch.starts[1:], strict=True):
        for stop in range(start + 1, end + 1):
            score = plain(torch.tensor(batch.token_ids[start:stop], dtype=torch.int64)[None]).logits.item()
            assert values_N[stop - 1].item() == pytest.approx(score, abs=1e-5)


def test_a_value_stands_before_its_action(classifier):
    path, _ = classifier
    model, batch = load(path), make_batch([4, 6])
    after_N, before_N = token_values(model, batch, "cpu"), values_before_actions(model, batch, "cpu")
    for index in range(10):
        expected = after_N[index - 1].item() if batch.is_action[index] else 0.0
        assert before_N[index].item() == pytest.approx(expected, abs=1e-7)


def test_an_empty_batch_reaches_every_parameter(classifier):
    model, batch = load(classifier[0]), make_batch([4])
    values_N = values_before_actions(model, batch.select([]), "cpu")
    assert len(values_N) == 0
    values_N.sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None and "embed" not in name]
    assert not without


def test_a_policy_gets_a_head_of_zeros_where_that_is_wanted(tmp_path):
    LlamaForCausalLM(LlamaConfig(**SMALL)).save_pretrained(tmp_path / "policy")
    with pytest.raises(ConfigError, match=r"--ds\.value_head_prefix"):
        load(tmp_path / "policy")
    model = load(tmp_path / "policy", new_head=True)
    assert not token_values(model, make_batch([4, 3]), "cpu").any()


def test_a_head_of_another_name_is_found(classifier, tmp_path):
    from safetensors.torch import load_file, save_file

    path, plain = classifier
    weights = load_file(path / "model.safetensors")
    weights["value_head.weight"] = weights.pop("score.weight")
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"has no weights score\.weight"):
        load(path)
    with pytest.raises(ConfigError, match=r"takes: value_head; .*--ds\.value_head_prefix"):
        load(path, new_head=True)  # a critic would begin at zero without a word
    check_head(str(path), "value_head")
    with pytest.raises(ConfigError, match=r"^--reward\.model_name_or_path: .*--ds\.value_head_prefix"):
        check_head(str(path), "score")
    assert torch.equal(load(path, head_prefix="value_head").score.weight, plain.score.weight)


def test_no_model_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot load a model with a value head"):
        load(tmp_path)
