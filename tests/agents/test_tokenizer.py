"""Text to ids and back: nothing added, nothing cleaned up, nothing different at a seam."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turngym.agents.tokenizer import Codec, load_tokenizer
from turngym.errors import ConfigError


@pytest.fixture
def codec(tokenizer_of):
    return Codec(tokenizer_of("<|im_start|><|im_end|>"))


@pytest.fixture
def spacing_codec():
    """A tokenizer that puts a space before the beginning of a text, as Llama 2's does."""
    vocab = {"<unk>": 0, "▁": 1, "▁a": 2, "a": 3, "b": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens([AddedToken("<end>", special=True, normalized=False)])
    return Codec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"))


def test_special_tokens_in_text_become_their_ids(codec):
    ids = codec.encode("<|im_start|>user\nHi <|im_end|>\n")
    assert codec.decode(ids) == "<|im_start|>user\nHi <|im_end|>\n"
    assert codec.decode(ids, skip_special_tokens=True) == "user\nHi \n"
    assert codec.num_special(ids, 3) == 1
    assert codec.num_special(ids[::-1], 3) == 0
    assert ids.dtype == np.int32


def test_special_tokens_are_counted_up_to_a_limit(codec):
    ids = codec.encode("<|im_end|><|im_end|><|im_end|>x")
    assert [codec.num_special(ids, most) for most in (0, 2, 5)] == [0, 2, 3]
    assert codec.num_special(ids[:0], 3) == 0


def test_spaces_before_punctuation_stay(codec):
    assert codec.decode(codec.encode("Hello , world ! don 't")) == "Hello , world ! don 't"


def test_text_behind_a_special_token_gets_no_space_of_its_own(spacing_codec):
    whole = spacing_codec.encode("a<end>ab")
    assert whole.tolist() == [2, 5, 3, 4]
    assert spacing_codec.encode("ab").tolist() == [2, 4]  # alone it would
    assert spacing_codec.encode_after(whole[:2], "ab").tolist() == [3, 4]


def test_text_that_melts_into_its_anchor_leaves_the_anchor_as_it_was(codec):
    the = codec.encode("The")
    assert len(the) < 3  # merged
    split = np.concatenate([codec.encode("<|im_end|>"), codec.encode("T"), codec.encode("h")])
    after = codec.encode_after(split, "e")
    assert codec.decode(np.concatenate([split, after])) == "<|im_end|>The"


def test_empty_text_has_no_tokens(codec):
    assert codec.encode("").tolist() == []
    assert codec.encode_after(codec.encode("<|im_end|>"), "").tolist() == []


@pytest.mark.parametrize("fixture", ["codec", "spacing_codec"])
@pytest.mark.parametrize(
    "body_and_end", [([], 0), ([3], 0), ([2, 4], 1), ([3, 4, 2], 2), ([2, "end", 4], 1), ([], 3), ([200], 1)]
)
def test_texts_of_an_answer_are_those_of_its_ids(fixture, body_and_end, request):
    """Whatever is put together from parts; 200 is the first byte of a longer letter in the first tokenizer."""
    codec = request.getfixturevalue(fixture)
    end_id = int(codec.encode("<|im_end|>" if fixture == "codec" else "<end>")[-1])
    body, num_end = body_and_end
    body = [end_id if token == "end" else token for token in body if fixture == "codec" or token != 200]
    ids = np.asarray(body + [end_id] * num_end, np.int32)
    said = codec.said(ids, 3)
    assert said.num_end == num_end
    assert said.body == codec.decode(ids[: len(body)])
    assert said.raw == codec.decode(ids)
    assert said.plain == codec.decode(ids, skip_special_tokens=True)


def test_no_more_special_tokens_than_asked_for_are_the_end(codec):
    ids = codec.encode("Hi<|im_end|><|im_end|>")
    assert codec.said(ids, 1) == (1, "Hi<|im_end|>", "Hi", "Hi<|im_end|><|im_end|>")


@pytest.mark.parametrize("skip_special_tokens", [False, True])
def test_bytes_are_decoded_as_the_tokenizer_itself_does(tokenizer_of, skip_special_tokens):
    tokenizer = tokenizer_of("<|im_start|><|im_end|>")
    tokenizer.add_tokens(["caf\u00e9 \u2713", "\u0120"])  # texts; the second looks like the code for a space
    codec, rng = Codec(tokenizer), np.random.default_rng(0)
    ends = len(tokenizer) + 2  # two ids that stand for nothing
    drawn = [[index] for index in range(ends)] + [rng.integers(0, ends, 12).tolist() for _ in range(2000)]
    for ids in drawn:
        wanted = tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        assert codec.decode(np.asarray(ids, np.int32), skip_special_tokens=skip_special_tokens) == wanted


def test_nothing_is_cut_or_padded_whatever_the_tokenizer_was_told_before(tokenizer_of):
    tokenizer = tokenizer_of("<|im_start|><|im_end|>")
    tokenizer.pad_token = "<eos>"
    codec = Codec(tokenizer)
    text = "How are you? I am good!"
    for told in ({"truncation": True, "max_length": 2}, {"padding": "max_length", "max_length": 64}):
        tokenizer("a b c d", **told)
        assert codec.decode(codec.encode(text)) == text
    tokenizer("<|im_end|>", split_special_tokens=True)
    assert len(codec.encode("<|im_end|>")) == 1


def test_a_tokenizer_with_a_way_of_its_own_is_asked(tokenizer_of):
    class Shouting(PreTrainedTokenizerFast):
        def _decode(self, *args, **kwargs):
            return super()._decode(*args, **kwargs).upper()

    plain = tokenizer_of("<|im_end|>")
    codec = Codec(Shouting(tokenizer_object=plain.backend_tokenizer, eos_token="<eos>"))
    ids = codec.encode("good<|im_end|>")
    assert codec.decode(ids) == "GOOD<|IM_END|>"
    assert codec.said(ids, 1) == (1, "GOOD", "GOOD", "GOOD<|IM_END|>")


def test_missing_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConfigError, match=r"nowhere.*is no folder here"):
        load_tokenizer(str(tmp_path / "nowhere"))


def test_folder_without_tokenizer_is_named(tmp_path):
    with pytest.raises(ConfigError, match="holds no tokenizer"):
        load_tokenizer(str(tmp_path))


def test_saved_tokenizer_loads(tokenizer_of, tmp_path):
    tokenizer_of("{{ messages }}").save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path)).chat_template == "{{ messages }}"


@pytest.mark.parametrize("fixture", ["codec", "spacing_codec"])
@pytest.mark.parametrize("head", ["", "ab", "ab{end}", "ab{end}{end}ab", "{end}a b{end}", "{end}"])
@pytest.mark.parametrize("rest", ["", "ab", " ab{end}", "\nb a{end}ab", "{end}"])
def test_a_head_of_its_own_makes_no_difference(fixture, head, rest, request):
    codec = request.getfixturevalue(fixture)
    end = "<|im_end|>" if fixture == "codec" else "<end>"
    head, rest = head.replace("{end}", end), rest.replace("{end}", end)
    for _ in range(2):  # the second time the head is known
        assert codec.encode_first(head, rest).tolist() == codec.encode(head + rest).tolist()
