"""The real tokenizer of SmolLM2, where its folder has been made (by the demo's set-up)."""

from pathlib import Path

import pytest

from turngym.agents import ChatAgent, load_tokenizer

FOLDER = Path.home() / ".cache" / "turngym" / "smollm2-135m-instruct"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"{FOLDER} has not been made: run `make demo` once")


@pytest.mark.slow
@pytest.mark.parametrize("with_system", [True, False])  # without, the template inserts its own
def test_three_turns_equal_the_templates_own_rendering(with_system, completion_of, sampling):
    tokenizer = load_tokenizer(str(FOLDER))
    agent = ChatAgent(tokenizer)
    assert agent.end_of_turn_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    conversation, chat = agent.begin(), []
    for turn in range(3):
        new = [{"role": "system", "content": "Be brief."}] if with_system and not turn else []
        new = [*new, {"role": "user", "content": f"What is {turn} plus 2?"}]
        chat += new
        conversation.observe(new)
        own = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        assert conversation.prompt_ids().tolist() == tokenizer.encode(own, add_special_tokens=False)
        answer = f"It is {turn + 2}, of course."
        ids = [*tokenizer.encode(answer, add_special_tokens=False), *agent.end_of_turn_ids]
        assert conversation.record(completion_of(ids), sampling) == answer
        chat.append({"role": "assistant", "content": answer})
    assert len(conversation.sequences()) == 1
    assert ("helpful AI assistant" in own) is not with_system
