"""A conversation through the server's session and the same one through the multi-turn executor: the same arrays."""

import asyncio

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turngym.agents import ChatAgent, Sampling
from turngym.agents.server.asks import ChatAsk
from turngym.agents.server.canonical import chat_messages
from turngym.agents.server.session import Session
from turngym.envs.base import Env
from turngym.envs.task import Task
from turngym.executors.engines.scripted import Reply, ScriptedEngine
from turngym.executors.episodes.limits import Limits
from turngym.executors.episodes.multi_turn import MultiTurn, SingleTurn
from turngym.executors.pools.env_pool import EnvPool

SAMPLING = Sampling(max_tokens=40, temperature=0.7, top_p=0.9)
QUESTIONS = ["How are you?", "What is your name?", " Good. \n", "Bye"]
ANSWERS = ["I am good!", "<think>\nMy name?\n</think>\n\nAda", "", "é ☃ and more than forty tokens in bytes"]
ARRAYS = ("token_ids", "is_action", "logprobs", "versions", "turn")


class Asks(Env):
    """Asks one question after the other."""

    def reset(self, *, seed=None, options=None):
        self._next = 1
        return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTIONS[0]}], {}

    def step(self, action):
        is_over = self._next == len(QUESTIONS)
        said = "" if is_over else QUESTIONS[self._next]
        self._next += 1
        return said, 1.0, is_over, False, {}


def engine_of(tokenizer, agent) -> ScriptedEngine:
    def answer(request):
        text = ANSWERS[request.index]
        ids = [token for byte in text for token in tokenizer.encode(byte, add_special_tokens=False)]
        ids += agent.end_of_turn_ids
        return Reply(ids, -np.linspace(0.1, 1.0, len(ids)))

    return ScriptedEngine(answer)


async def played(tokenizer):
    agent = ChatAgent(tokenizer)
    pool = EnvPool(1, close_timeout_s=1.0)
    try:
        executor = MultiTurn(agent, Asks, pool, Limits())
        async with asyncio.timeout(60):
            return await executor.run(Task(id="t"), 0, engine_of(tokenizer, agent), SAMPLING)
    finally:
        pool.close()


async def asked(tokenizer):
    agent = ChatAgent(tokenizer)
    session = Session(agent, engine_of(tokenizer, agent), SAMPLING)
    history = [{"role": "developer", "content": "Be brief."}]
    for question in QUESTIONS:
        history.append({"role": "user", "content": [{"type": "text", "text": question}]})
        (answer,) = await session.chat(ChatAsk(chat_messages(history), SAMPLING))
        history.append({"role": "assistant", "content": answer.content})
    return session.record()


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_training", "llama3_1", "gptoss", "qwen3_5_think", "phi3"])
async def test_both_give_the_same_arrays(name, tokenizer_of, template_text):
    tokenizer = tokenizer_of(template_text(name))
    trajectory, record = await played(tokenizer), await asked(tokenizer)
    assert trajectory.failure is None
    assert len(trajectory.sequences) == len(record.sequences)
    for ours, theirs in zip(record.sequences, trajectory.sequences, strict=True):
        for array in ARRAYS:
            assert getattr(ours, array).tobytes() == getattr(theirs, array).tobytes(), array
            assert getattr(ours, array).dtype == getattr(theirs, array).dtype, array
        assert ours.samplings == theirs.samplings
        assert (ours.parent, ours.fork_reason) == (theirs.parent, theirs.fork_reason)
    assert list(trajectory.messages) == list(record.conversations[0])
    assert len(record.stop_reasons) == trajectory.num_turns == 4


async def test_some_of_these_templates_fork(tokenizer_of, template_text):
    assert len((await played(tokenizer_of(template_text("qwen3")))).sequences) > 1


PLAIN = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PIECES = {53122: " Pant", 316: "om", 393: " P", 30002: "antom"}


@pytest.fixture
def pantom():
    """A tokenizer of bytes, and of pieces that have the ids of a public model's."""
    alphabet = {character: index for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary = {**alphabet, **{piece.replace(" ", "\u0120"): index for index, piece in PIECES.items()}}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["<|end|>", "<|user|>", "<|assistant|>"]
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=PLAIN)


@pytest.mark.parametrize("how", ["single-turn", "multi-turn", "server"])
async def test_splits_that_decode_to_the_same_text_are_kept_as_they_were_sampled(pantom, how):
    """R13: both are ` Pantom`, and the tokenizer would make other ids of it than either."""
    splits = [[53122, 316, pantom.eos_token_id], [393, 30002, pantom.eos_token_id]]
    if how == "single-turn":
        splits = splits[1:]
    assert {pantom.decode(split) for split in splits} == {" Pantom<|end|>"}
    agent = ChatAgent(pantom)
    engine = ScriptedEngine([Reply(split, [-0.1, -2.0, -0.3]) for split in splits])
    if how == "server":
        session, history = Session(agent, engine, SAMPLING), []
        for _ in splits:
            history.append({"role": "user", "content": "Who?"})
            (answer,) = await session.chat(ChatAsk(chat_messages(history), SAMPLING))
            history.append({"role": "assistant", "content": answer.content})
        sequences = session.record().sequences
    else:
        pool = EnvPool(1, close_timeout_s=1.0)
        try:
            executor = (SingleTurn if how == "single-turn" else MultiTurn)(agent, Asks, pool, Limits(max_turns=2))
            async with asyncio.timeout(60):
                sequences = (await executor.run(Task(id="t"), 0, engine, SAMPLING)).sequences
        finally:
            pool.close()
    (sequence,) = sequences
    assert sequence.token_ids[sequence.is_action].tolist() == [token for split in splits for token in split]
    assert sequence.logprobs[sequence.is_action].tolist() == np.float32([-0.1, -2.0, -0.3] * len(splits)).tolist()
