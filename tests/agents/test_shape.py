"""What shapes a completion: what it takes, that it can be compared and stored, and which tokens are marked."""

import dataclasses
import json
import pickle

import numpy as np
import pytest

from turngym.agents import Completion, Grammar, Sampling, SequenceBuilder, Shape, StopReason
from turngym.errors import ConfigError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SHAPE = Shape(Grammar.json_schema(SCHEMA), 0.5, -0.5, 1.25, ((3, 1.5), (7, -100.0)), ("no", "never"), 2)


def test_a_shape_is_a_value():
    again = Shape(**json.loads(json.dumps(dataclasses.asdict(SHAPE))))
    assert again == SHAPE == pickle.loads(pickle.dumps(SHAPE))
    assert len({again, SHAPE, Shape()}) == 2
    assert again.grammar.value == SCHEMA
    assert Shape(logit_bias=()).is_none
    assert not Shape(bad_words=("a",)).is_none


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Grammar("json_schema", "{"), "needs JSON"),
        (lambda: Grammar("json_schema", "[1]"), "needs a JSON object"),
        (lambda: Grammar("json_object", "a"), "takes no text"),
        (lambda: Grammar("regex"), "needs a text"),
        (lambda: Grammar("lark", "a"), "lark"),
        (lambda: Grammar.choice([]), "none empty"),
        (lambda: Grammar.choice(["a", ""]), "none empty"),
        (lambda: Grammar.choice(["a", 1]), "none empty"),
        (lambda: Grammar.json_schema({"a": float("nan")}), "what JSON can say"),
        (lambda: Grammar.json_schema({"a": {1, 2}}), "what JSON can say"),
        (lambda: Shape(presence_penalty=2.5), "presence_penalty must lie in"),
        (lambda: Shape(frequency_penalty=float("nan")), "frequency_penalty must lie in"),
        (lambda: Shape(repetition_penalty=0.0), "repetition_penalty must be positive"),
        (lambda: Shape(repetition_penalty=float("inf")), "repetition_penalty must be positive"),
        (lambda: Shape(logit_bias=((-1, 1.0),)), "logit_bias takes"),
        (lambda: Shape(logit_bias=((1, float("nan")),)), "logit_bias takes"),
        (lambda: Shape(bad_words=("",)), "bad_words are texts"),
        (lambda: Shape(min_tokens=-1), "min_tokens must not be negative"),
        (lambda: Sampling(1, num_top_logprobs=21), "num_top_logprobs must lie in"),
    ],
)
def test_mistakes_are_told(make, words):
    with pytest.raises(ValueError, match=words) as told:
        make()
    assert isinstance(told.value, ConfigError) or words == "lark"


@pytest.mark.parametrize(
    ("changes", "is_full"),
    [
        ({}, True),
        ({"temperature": 0.5, "top_k": 0, "shape": Shape(), "num_top_logprobs": 3, "stop": ("a",)}, True),
        ({"top_p": 0.9}, False),
        ({"top_k": 5}, False),
        ({"min_p": 0.1}, False),
        ({"shape": SHAPE}, False),
        ({"shape": Shape(min_tokens=1)}, False),
    ],
)
def test_which_logprobs_compare_with_a_learner(changes, is_full):
    assert Sampling(8, **changes).is_full_softmax is is_full


def test_tokens_are_marked_by_turn():
    builder = SequenceBuilder()
    builder.add_context([1, 2], -1)
    for turn, shape in enumerate((None, SHAPE, None)):
        ids = np.asarray([3, 4], np.int32)
        completion = Completion(ids, np.full(2, -0.5, np.float32), np.zeros(2, np.int32), StopReason.STOP)
        builder.add_completion(completion, Sampling(8, shape=shape), turn)
        builder.add_context([5], turn)
    sequence = builder.build()
    assert np.flatnonzero(sequence.is_shaped).tolist() == [5, 6]  # the second turn's actions, not what answered them
    assert not dataclasses.replace(sequence, samplings={0: Sampling(8)}).is_shaped.any()
