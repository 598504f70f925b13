"""Whatever is sampled, over however many turns: each token is recorded once, as it was, and only it is an action."""

import numpy as np
import pytest

from turngym.agents import ChatAgent
from turngym.envs.messages import RawText

TEMPLATES = ["qwen2_5", "qwen3", "qwen3_5_think", "llama3", "gptoss", "glm4moe", "cohere2", "smolvlm", "muse_glimmer"]


def random_completion(rng, vocab_size, agent):
    """Any tokens: bytes that are no UTF-8, special tokens, an end or none."""
    ids = rng.integers(0, vocab_size, size=int(rng.integers(0, 12))).tolist()
    if rng.random() < 0.3:
        ids = rng.integers(0, 256, size=8).tolist()
    return ids + (list(agent.end_of_turn_ids) if rng.random() < 0.5 else [])


def random_observation(rng, turn):
    if rng.random() < 0.15:
        return RawText(f" raw {turn}<eos> ")
    return [{"role": "user", "content": rng.choice(["Why?", " spaced \n", "é ☃ 中", "<think>", "a" * 40])}]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", TEMPLATES)
def test_recorded_tokens_are_the_actions_each_once(name, seed, tokenizer_of, template_text, completion_of, sampling):
    tokenizer = tokenizer_of(template_text(name))
    agent = ChatAgent(tokenizer)
    rng = np.random.default_rng([seed, len(name)])
    conversation, sampled, prompts = agent.begin(), [], []
    for turn in range(int(rng.integers(1, 9))):
        conversation.observe(random_observation(rng, turn) if turn else [{"role": "user", "content": "Hi"}])
        prompts.append(conversation.prompt_ids().tolist())
        ids = random_completion(rng, len(tokenizer), agent)
        sampled.append(ids)
        conversation.record(completion_of(ids, is_cut=bool(rng.random() < 0.3), version=turn), sampling)
    conversation.observe([{"role": "user", "content": "Bye"}], is_last=True)
    sequences = conversation.sequences()
    actions = np.concatenate([sequence.token_ids[sequence.is_action] for sequence in sequences])
    assert actions.tolist() == [token for ids in sampled for token in ids]
    check_turns(sequences, sampled, prompts)


def check_turns(sequences, sampled, prompts):
    """Each turn's tokens stand in one sequence, right behind the prompt that the engine saw."""
    for turn, ids in enumerate(sampled):
        homes = [s for s in sequences if (s.is_action & (s.turn == turn)).any()]
        assert len(homes) == (1 if ids else 0)
        for home in homes:
            places = np.flatnonzero(home.is_action & (home.turn == turn))
            assert home.token_ids[places].tolist() == ids
            assert places.tolist() == list(range(places[0], places[0] + len(ids)))
            assert home.token_ids[: places[0]].tolist() == prompts[turn]
            assert (home.versions[places] == turn).all()
    for sequence in sequences[1:]:
        parent, shared = sequence.parent
        assert np.array_equal(sequences[parent].token_ids[:shared], sequence.token_ids[:shared])
