"""Where calls end, in the formats of several families, and which tokens say so."""

import numpy as np
import pytest

from turngym.agents import Completion, StopReason
from turngym.agents.answer_reader import AnswerReader
from turngym.agents.base import TopLogprobs
from turngym.agents.call_ends import end_of_calls, stop_mark, up_to
from turngym.agents.harmony import HarmonyThoughts
from turngym.agents.reasoning import TagThoughts
from turngym.agents.tokenizer import Codec
from turngym.agents.tool_calls import tool_parser

HERMES = '<tool_call>\n{"name": "f", "arguments": {"s": "</tool_call>"}}\n</tool_call>'
LLAMA = '{"name": "f", "parameters": {"a": {"b": 1}}}'
MISTRAL = '[TOOL_CALLS]f[ARGS]{"a": {"b": 1}}'
COHERE = '<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>'
HARMONY = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>'
TAIL = "\nObservation: \\boxed{42}"


def reader_of(name, **options) -> AnswerReader:
    thoughts = HarmonyThoughts() if name == "openai" else TagThoughts()
    return AnswerReader(thoughts, tool_parser(name), **options)


@pytest.mark.parametrize(
    ("name", "kept", "tail"),
    [
        ("json", HERMES, TAIL),
        ("json", f"I look.\n{HERMES}", f"{TAIL}</tool_call>"),
        ("json", f"{HERMES}\nAnd:\n{HERMES}", TAIL),
        ("json", f"<think>{HERMES}{TAIL}</think>{HERMES}", TAIL),  # a call in a thought is none
        ("llama3_json", f"<think>{LLAMA}</think>{LLAMA}", TAIL),
        ("mistral", f"[THINK]{MISTRAL}[/THINK]{MISTRAL}", TAIL),
        ("cohere_command3", f"<|START_THINKING|>{COHERE}<|END_THINKING|>{COHERE}", TAIL),
        ("json", "<tool_call>{nothing</tool_call>", TAIL),  # it is told so, and made up what it is told
        ("llama3_json", LLAMA, TAIL),
        ("llama3_json", f"{LLAMA}; {LLAMA}", TAIL),
        ("mistral", MISTRAL, TAIL),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {}}]', TAIL),
        ("cohere_command3", COHERE, TAIL),
        ("openai", HARMONY, f"<|start|>functions.f to=assistant<|channel|>commentary<|message|>{TAIL}"),
        ("json", f"{HERMES}\n\n", ""),  # spaces stay
        ("json", f"It is 42.{TAIL}", ""),
        ("json", f'<tool_call>{{"name": "f", "arguments": {{}}}}{TAIL}', ""),  # never closed: all of it is the call
        ("mistral", f"[TOOL_CALLS]f[ARGS]{{{TAIL}", ""),
    ],
)
def test_what_stands_behind_the_last_call_is_found(name, kept, tail):
    reader = reader_of(name)
    assert end_of_calls(reader, kept + tail) == len(kept)
    assert reader.read(kept).calls == reader.read(kept + tail).calls


def test_only_a_mark_that_no_thought_can_hold_ends_the_sampling():
    marks = {name: stop_mark(reader_of(name)) for name in ("json", "cohere_command3", "openai", "mistral")}
    assert marks == {"json": "</tool_call>", "cohere_command3": "<|END_ACTION|>", "openai": "<|call|>", "mistral": None}
    assert stop_mark(reader_of("json", may_think=True)) is None


def test_the_fewest_tokens_are_kept_as_they_were_sampled(tokenizer_of):
    codec = Codec(tokenizer_of(None))
    text = "quick brown fox"
    pieces = [codec.encode(piece) for piece in ("quick", " bro", "wn f", "ox")]
    ids = np.concatenate(pieces)
    count = sum(map(len, pieces[:3]))
    row = np.arange(len(ids), dtype=np.float32)
    top = TopLogprobs(ids[:, None], -row[:, None])
    whole = Completion(ids, -row, np.full(len(ids), 3, np.int32), StopReason.LENGTH, top)
    place = next(n for n in range(len(ids)) if len(codec.decode(ids[:n])) >= len("quick brown"))
    kept = up_to(whole, codec, text, len("quick brown"))
    assert place <= count
    assert kept.token_ids.tolist() == ids[:place].tolist()
    assert kept.logprobs.tolist() == (-row[:place]).tolist()
    assert (kept.versions.tolist(), kept.stop_reason) == ([3] * place, StopReason.STOP)
    assert kept.top.token_ids.shape == (place, 1)
    assert up_to(whole, codec, "slow brown fox", 8) is whole  # its tokens say something else
