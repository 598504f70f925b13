"""Conversations: what is appended, what is kept as sampled, when a history forks."""

import numpy as np
import pytest

from turngym.agents import ChatAgent, StopReason
from turngym.agents.chat import ChatConversation, agent_for
from turngym.agents.tokenizer import Codec
from turngym.envs.messages import RawText
from turngym.errors import TemplateError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def user(text):
    return [{"role": "user", "content": text}]


@pytest.fixture
def tokenizer(tokenizer_of):
    return tokenizer_of(CHATML)


class Talk:
    """A conversation with its tokenizer, to speak in text."""

    def __init__(self, tokenizer, completion_of, sampling, **options):
        self.tokenizer, self.completion_of, self.sampling = tokenizer, completion_of, sampling
        self.agent = ChatAgent(tokenizer, **options)
        self.conversation: ChatConversation = self.agent.begin()

    def say(self, text, **options):
        return self.say_ids(self.tokenizer.encode(text, add_special_tokens=False), **options)

    def say_ids(self, ids, *, is_cut=False, with_query=False):
        completion = self.completion_of(list(ids), is_cut=is_cut)
        return self.conversation.record(completion, self.sampling, with_query=with_query)

    def prompt(self):
        return self.tokenizer.decode(self.conversation.prompt_ids().tolist())


@pytest.fixture
def talk(tokenizer, completion_of, sampling):
    return Talk(tokenizer, completion_of, sampling)


@pytest.fixture
def talk_of(tokenizer_of, template_text, completion_of, sampling):
    """Start a conversation with one of trl's templates, by name, or with a template's text."""

    def start(template, *, tools=None, **template_kwargs):
        text = template if "{" in template else template_text(template)
        return Talk(tokenizer_of(text), completion_of, sampling, template_kwargs=template_kwargs, tools=tools)

    return start


def test_two_turns_token_for_token(talk):
    talk.conversation.observe(user("How are you?"))
    assert talk.prompt() == "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n"
    before = talk.conversation.prompt_ids().tolist()
    action = talk.say("I am good!<|im_end|>")
    talk.conversation.observe(user("What is your name?"))
    after = talk.conversation.prompt_ids().tolist()
    said = talk.tokenizer.encode("I am good!<|im_end|>", add_special_tokens=False)
    assert after[: len(before) + len(said)] == before + said
    assert talk.tokenizer.decode(after[len(before) + len(said) :]) == (
        "\n<|im_start|>user\nWhat is your name?<|im_end|>\n<|im_start|>assistant\n"
    )
    (sequence,) = talk.conversation.sequences()
    assert sequence.token_ids[sequence.is_action].tolist() == said
    assert sequence.turn.tolist() == [-1] * len(before) + [0] * (len(after) - len(before))
    assert (action, action.raw, action.is_cut, action.query) == ("I am good!", "I am good!<|im_end|>", False, None)
    assert talk.conversation.messages == [
        {"role": "user", "content": "How are you?"},
        {"role": "assistant", "content": "I am good!"},
        {"role": "user", "content": "What is your name?"},
    ]


def test_only_new_text_is_tokenised(talk, monkeypatch):
    talk.conversation.observe(user("How are you?"))
    talk.say("I am good!<|im_end|>")
    seen = []
    encoded = Codec._encoded
    monkeypatch.setattr(Codec, "_encoded", lambda codec, text: seen.append(text) or encoded(codec, text))
    talk.conversation.observe(user("Sure?"))
    assert seen == ["<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"]  # with its anchor


# R10: history re-rendered is not a prefix.


def test_qwen3_thinking_on_keeps_what_has_no_thought(talk_of):
    talk = talk_of("qwen3")
    for question, answer in [("How are you?", "I am good!"), ("What is your name?", "Fox."), ("Sure?", "Yes.")]:
        before = talk.conversation.prompt_ids().tolist()
        talk.conversation.observe(user(question))
        assert talk.conversation.prompt_ids().tolist()[: len(before)] == before
        talk.say(answer + "<|im_end|>")
    assert talk.conversation.forks == ()
    assert len(talk.conversation.sequences()) == 1


def test_qwen3_thinking_on_forks_where_it_strips_a_thought(talk_of):
    talk = talk_of("qwen3")
    talk.conversation.observe(user("How are you?"))
    first = talk.conversation.prompt_ids().tolist()
    thought = talk.say("<think>\n\n</think>\n\nI am good!<|im_end|>")
    assert thought == "<think>\n\n</think>\n\nI am good!"
    talk.conversation.observe(user("What is your name?"))
    talk.say("Fox.<|im_end|>")
    talk.conversation.observe(user("Sure?"))
    talk.say("Yes.<|im_end|>")
    old, new = talk.conversation.sequences()  # the second and third answer have no thought: one fork
    assert new.parent == (0, len(first))
    assert "thoughts" in new.fork_reason
    assert (new.fork_reason,) == talk.conversation.forks
    assert talk.tokenizer.decode(old.token_ids[old.is_action]) == "<think>\n\n</think>\n\nI am good!<|im_end|>"
    assert talk.tokenizer.decode(new.token_ids[new.is_action]) == "Fox.<|im_end|>Yes.<|im_end|>"
    assert talk.tokenizer.decode(new.token_ids).startswith(
        "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\nI am good!<|im_end|>\n<|im_start|>user\n"
    )
    assert sorted(set(new.turn[new.is_action].tolist())) == [1, 2]
    assert set(new.samplings) == {1, 2}


def test_qwen3_thinking_off_forks_each_turn_and_sends_its_own_rendering(talk_of):
    talk = talk_of("qwen3", enable_thinking=False)
    chat = []
    for question, answer in [("How are you?", "I am good!"), ("What is your name?", "Fox."), ("Sure?", "Yes.")]:
        chat += user(question)
        talk.conversation.observe(user(question))
        assert talk.prompt() == talk.tokenizer.apply_chat_template(
            chat, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        talk.say(answer + "<|im_end|>")
        chat.append({"role": "assistant", "content": answer})
    sequences = talk.conversation.sequences()
    assert [sequence.num_actions > 0 for sequence in sequences] == [True] * 3
    assert [sequence.parent and sequence.parent[0] for sequence in sequences] == [None, 0, 1]


# R11: the generation prompt opened the thought.


@pytest.mark.parametrize("name", ["qwen3_5_think_training", "qwen3_8"])
def test_a_thought_has_one_open_and_one_close_tag(talk_of, name):
    talk = talk_of(name)
    talk.conversation.observe(user("What is 2+2?"))
    assert talk.prompt().endswith("<|im_start|>assistant\n<think>\n")
    talk.say("two and two\n</think>\n\n4<|im_end|>")
    talk.conversation.observe(user("And 3+3?"))
    (sequence,) = talk.conversation.sequences()
    text = talk.tokenizer.decode(sequence.token_ids)
    assert text.count("<think>") == 2  # one of the answer, one of the next prompt
    assert text.count("</think>") == 1
    assert "<think>\ntwo and two\n</think>\n\n4<|im_end|>\n<|im_start|>user\nAnd 3+3?" in text


def test_a_thought_cut_by_a_limit_is_closed_by_nobody(talk_of):
    talk = talk_of("qwen3_5_think")
    talk.conversation.observe(user("What is 2+2?"))
    talk.say("two and", is_cut=True)
    talk.conversation.observe(user("And 3+3?"))
    assert talk.conversation.forks == ()
    assert "<think>\ntwo and<|im_end|>\n<|im_start|>user\nAnd 3+3?" in talk.prompt()


# R13: same text, other tokens.


@pytest.mark.parametrize("num_turns", [1, 3])
def test_sampled_split_stays_as_it_was(talk, num_turns):
    canonical = talk.tokenizer.encode("The answer is", add_special_tokens=False)
    split = [token for letter in "The answer is" for token in talk.tokenizer.encode(letter, add_special_tokens=False)]
    assert talk.tokenizer.decode(split) == talk.tokenizer.decode(canonical)
    assert len(split) > len(canonical)
    sampled = [*split, *talk.agent.end_of_turn_ids]
    for _ in range(num_turns):
        talk.conversation.observe(user("What?"))
        assert talk.say_ids(sampled) == "The answer is"
    talk.conversation.observe(user("Bye."), is_last=True)
    (sequence,) = talk.conversation.sequences()
    assert sequence.token_ids[sequence.is_action].tolist() == sampled * num_turns
    assert talk.conversation.forks == ()


def test_fork_keeps_the_sampled_split_of_what_the_template_kept(talk_of):
    talk = talk_of("qwen3")
    talk.conversation.observe(user("Who?"))
    split = [token for letter in "The fox" for token in talk.tokenizer.encode(letter, add_special_tokens=False)]
    talk.say_ids([*split, *talk.agent.end_of_turn_ids])
    talk.conversation.observe(user("Why?"))
    second = talk.conversation.prompt_ids().tolist()
    talk.say("<think>\nhm\n</think>\n\nSo.<|im_end|>")
    talk.conversation.observe(user("When?"))
    _, new = talk.conversation.sequences()
    assert new.parent == (0, len(second))
    assert new.token_ids[: len(second)].tolist() == second  # the split of the first answer included
    assert new.num_actions == 0
    assert new.turn[: len(second)].tolist() == talk.conversation.sequences()[0].turn[: len(second)].tolist()


def test_ids_that_the_tokenizer_does_not_know_are_kept(talk):
    """A model's vocabulary may be padded beyond its tokenizer's."""
    talk.conversation.observe(user("Hi"))
    sampled = [100_000, *talk.tokenizer.encode("Yes."), 100_001, *talk.agent.end_of_turn_ids]
    assert talk.say_ids(sampled) == "Yes."
    talk.conversation.observe(user("Well?"))
    (sequence,) = talk.conversation.sequences()
    assert sequence.token_ids[sequence.is_action].tolist() == sampled


# The end of a turn.


def test_cut_answer_gets_its_end_as_context(talk):
    talk.conversation.observe(user("Hi"))
    action = talk.say("I am", is_cut=True)
    assert action.is_cut
    talk.conversation.observe(user("Go on"))
    (sequence,) = talk.conversation.sequences()
    assert talk.tokenizer.decode(sequence.token_ids[sequence.is_action]) == "I am"
    assert "I am<|im_end|>\n<|im_start|>user\nGo on" in talk.prompt()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Yes.<eos>", "Yes.<eos><|im_end|>\n<|im_start|>user"),  # another stop token: stays, and the turn ends
        ("Yes.<|im_end|><eos>", "Yes.<|im_end|><eos><|im_end|>\n<|im_start|>user"),
        ("<|im_end|>", "assistant\n<|im_end|>\n<|im_start|>user"),
        ("", "assistant\n<|im_end|>\n<|im_start|>user"),
    ],
)
def test_every_way_to_stop_keeps_the_sequence(talk, said, kept):
    talk.conversation.observe(user("Hi"))
    talk.say(said)
    talk.conversation.observe(user("Well?"))
    assert kept in talk.prompt()
    assert talk.conversation.forks == ()


def test_two_tokens_that_end_a_turn_are_not_doubled(talk_of):
    talk = talk_of("cohere2")
    assert talk.tokenizer.decode(list(talk.agent.end_of_turn_ids)) == "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"
    talk.conversation.observe(user("Hi"))
    assert talk.say("Yes.<|END_RESPONSE|><|END_OF_TURN_TOKEN|>") == "Yes."
    talk.conversation.observe(user("Well?"))
    assert talk.conversation.forks == ()
    assert talk.prompt().count("<|END_RESPONSE|>") == 1


def test_an_end_that_the_template_replaces_forks_rather_than_end_twice(talk_of):
    talk = talk_of("gptoss")
    talk.conversation.observe(user("Hi"))
    talk.say("<|channel|>final<|message|>Yes.<|return|>")
    talk.conversation.observe(user("Well?"))
    assert "ends an earlier answer differently: '<|return|>' became '<|end|>" in talk.conversation.forks[0]
    assert "<|return|>" not in talk.prompt()


def test_whitespace_that_a_template_trims_does_not_fork(talk_of):
    talk = talk_of("llama3")
    talk.conversation.observe(user("Hi"))
    talk.say(" Yes. \n<|eot_id|>")
    talk.conversation.observe(user("Well?"))
    talk.say("No.<|eot_id|>")
    talk.conversation.observe(user("Really?"))
    assert talk.conversation.forks == ()
    assert " Yes. \n<|eot_id|><|start_header_id|>user" in talk.prompt()
    assert "assistant<|end_header_id|>\n\nNo.<|eot_id|><|start_header_id|>user" in talk.prompt()


# Templates that rewrite.

NUMBERED = CHATML.replace("m.role + '\n'", "m.role ~ loop.index ~ '/' ~ messages|length ~ '\n'")
MARKS_LAST = CHATML.replace("'<|im_end|>\n' }}", "('[last]' if loop.last else '') + '<|im_end|>\n' }}")
SYSTEM_IN_LAST_USER = (
    "{% set system = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% for m in messages if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' + "
    "(system + ' ' if loop.last else '') + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("template", [NUMBERED, MARKS_LAST, SYSTEM_IN_LAST_USER])
def test_rewriting_template_forks_into_its_own_rendering(talk_of, template):
    talk = talk_of(template)
    chat = [{"role": "system", "content": "Brief!"}, *user("Hi")]
    talk.conversation.observe(list(chat))
    for turn in range(2):
        talk.say(f"Yes {turn}.<|im_end|>")
        chat += [{"role": "assistant", "content": f"Yes {turn}."}, *user(f"Well {turn}?")]
        talk.conversation.observe(user(f"Well {turn}?"))
        assert talk.prompt() == talk.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    sequences = talk.conversation.sequences()
    assert [sequence.num_actions > 0 for sequence in sequences] == [True, True, False]
    assert all("rewrites what was shown before" in reason for reason in talk.conversation.forks)
    assert [talk.tokenizer.decode(s.token_ids[s.is_action]) for s in sequences[:2]] == [
        "Yes 0.<|im_end|>",
        "Yes 1.<|im_end|>",
    ]


def test_template_with_a_clock_keeps_its_time(talk_of):
    talk = talk_of("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }} " + CHATML)
    talk.conversation.observe(user("Hi"))
    start = talk.prompt().partition("<")[0]
    talk.say("Yes.<|im_end|>")
    talk.conversation.observe(user("Well?"))
    assert talk.conversation.forks == ()
    assert talk.prompt().startswith(start)
    other = talk.agent.begin()
    other.observe(user("Hi"))
    assert not talk.tokenizer.decode(other.prompt_ids().tolist()).startswith(start)


def test_answer_that_the_template_refuses_is_kept(talk_of):
    talk = talk_of("gptoss")
    talk.conversation.observe(user("Hi"))
    talk.say("<|channel|>final<|message|><|channel|>final<|message|>Yes.<|return|>")
    talk.conversation.observe(user("Well?"))
    assert talk.conversation.forks == ()
    assert talk.prompt().endswith("Yes.<|return|><|end|><|start|>user<|message|>Well?<|end|><|start|>assistant")
    talk.say("<|channel|>final<|message|>No.<|return|>")
    talk.conversation.observe(user("Oh?"))
    assert len(talk.conversation.sequences()) == 1


# Observations.


def test_several_messages_and_few_shot_answers_are_context(talk):
    shots = [
        {"role": "system", "content": "Brief!"},
        *user("1+1?"),
        {"role": "assistant", "content": "2"},
        *user("2+2?"),
    ]
    talk.conversation.observe(list(shots))
    talk.say("4<|im_end|>")
    (sequence,) = talk.conversation.sequences()
    assert talk.tokenizer.decode(sequence.token_ids[sequence.is_action]) == "4<|im_end|>"
    assert talk.prompt().startswith("<|im_start|>system\nBrief!<|im_end|>\n<|im_start|>user\n1+1?")
    talk.conversation.observe([{"role": "tool", "content": "a"}, {"role": "tool", "content": "b"}])
    assert talk.prompt().endswith(
        "4<|im_end|>\n<|im_start|>tool\na<|im_end|>\n<|im_start|>tool\nb<|im_end|>\n<|im_start|>assistant\n"
    )


def test_last_observation_has_no_generation_prompt(talk):
    talk.conversation.observe(user("Hi"))
    talk.say("Yes.<|im_end|>")
    talk.conversation.observe(user("Right."), is_last=True)
    assert talk.prompt().endswith("Yes.<|im_end|>\n<|im_start|>user\nRight.<|im_end|>\n")


@pytest.mark.parametrize("nothing", [[], user(""), RawText("")])
def test_empty_last_observation_does_nothing(talk, nothing):
    talk.conversation.observe(user("Hi"))
    talk.say("Yes.<|im_end|>")
    before = talk.conversation.prompt_ids().tolist()
    talk.conversation.observe(nothing, is_last=True)
    assert talk.conversation.prompt_ids().tolist() == before
    assert len(talk.conversation.messages) == 2


def test_last_observation_opens_no_sequence(talk_of):
    talk = talk_of("qwen3")
    talk.conversation.observe(user("Hi"))
    talk.say("<think>\nhm\n</think>\n\nYes.<|im_end|>")
    talk.conversation.observe(user("Right."), is_last=True)
    assert talk.conversation.forks == ()
    assert talk.prompt().endswith("Yes.<|im_end|>")
    assert talk.conversation.messages[-1]["content"] == "Right."


def test_observation_of_nothing_lets_the_model_speak_again(talk):
    talk.conversation.observe(user("Hi"))
    talk.say("Yes.<|im_end|>")
    talk.conversation.observe([])
    assert talk.prompt().endswith("Yes.<|im_end|>\n<|im_start|>assistant\n")


def test_two_observations_before_the_first_answer_are_one_context(talk):
    talk.conversation.observe(user("Hi"))
    talk.conversation.observe(user("You?"))
    assert talk.prompt() == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>user\nYou?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert len(talk.conversation.sequences()) == 1


def test_raw_text_is_appended_as_it_is(talk):
    talk.conversation.observe(user("Hi"))
    talk.say("Yes.<|im_end|>")
    before = talk.conversation.prompt_ids().tolist()
    feedback = "\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    talk.conversation.observe(RawText(feedback))
    added = talk.conversation.prompt_ids().tolist()[len(before) :]
    assert added == talk.tokenizer.encode(feedback, add_special_tokens=False)
    talk.say("No.", is_cut=True)
    talk.conversation.observe(user("Oh?"))  # messages again
    assert talk.prompt().endswith(feedback + "No.<|im_end|>\n<|im_start|>user\nOh?<|im_end|>\n<|im_start|>assistant\n")
    assert [message["role"] for message in talk.conversation.messages] == [
        "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip


def test_messages_after_raw_text_and_a_whole_answer_end_it_once(talk):
    talk.conversation.observe(RawText("Q: Hi A:"))
    talk.say("Yes.<|im_end|>")
    talk.conversation.observe(user("Oh?"))
    assert talk.prompt() == "Q: Hi A:Yes.<|im_end|>\n<|im_start|>user\nOh?<|im_end|>\n<|im_start|>assistant\n"


def test_two_completions_on_end_are_both_kept(talk):
    talk.conversation.observe(user("Hi"))
    talk.say("Yes", is_cut=True)
    talk.say(" indeed.<|im_end|>")
    talk.conversation.observe(user("Oh?"))
    assert "Yes indeed.<|im_end|>\n<|im_start|>user\nOh?" in talk.prompt()
    (sequence,) = talk.conversation.sequences()
    assert set(sequence.turn[sequence.is_action].tolist()) == {0, 1}


def test_without_template_everything_is_sent_as_it_is(tokenizer_of, completion_of, sampling):
    talk = Talk(tokenizer_of(None), completion_of, sampling, apply_chat_template=False)
    assert talk.agent.end_of_turn_ids == ()
    talk.conversation.observe(user("Q: Hi A:"))
    assert talk.prompt() == "Q: Hi A:"  # no <bos>
    talk.say(" Yes.<eos>")
    talk.conversation.observe(user("\nQ: Well? A:"))
    assert talk.prompt() == "Q: Hi A: Yes.<eos>\nQ: Well? A:"
    with pytest.raises(TemplateError, match="an observation is one text, got messages of roles system, user"):
        talk.agent.begin().observe([{"role": "system", "content": "a"}, *user("b")])


def test_query_is_all_text_with_special_tokens(talk):
    talk.conversation.observe(user("Hi"))
    action = talk.say("Yes.<|im_end|>", with_query=True)
    assert action.query == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>"


def test_aborted_answer_is_not_cut_at_a_limit(talk, completion_of, sampling):
    talk.conversation.observe(user("Hi"))
    completion = completion_of([5, 6])
    aborted = type(completion)(completion.token_ids, completion.logprobs, completion.versions, StopReason.ABORT)
    assert not talk.conversation.record(aborted, sampling).is_cut


# Refusals change nothing.


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (user("again"), None),
        ([{"role": "system", "content": "late"}], "roles must alternate"),
        ([{"role": "user", "content": [{"type": "image", "image": "x"}]}], "reads text only"),
    ],
)
def test_refused_observation_leaves_the_conversation_as_it_was(talk_of, observation, message):
    talk = talk_of("gemma")
    talk.conversation.observe(user("Hi"))
    talk.say("Yes.<end_of_turn>")
    if message:
        before, said = talk.conversation.prompt_ids().tolist(), talk.conversation.messages
        with pytest.raises(TemplateError, match=message):
            talk.conversation.observe(observation)
        assert talk.conversation.prompt_ids().tolist() == before
        assert talk.conversation.messages == said
    talk.conversation.observe(user("again"))
    assert talk.prompt().endswith("<end_of_turn>\n<start_of_turn>user\nagain<end_of_turn>\n<start_of_turn>model\n")


def test_first_observation_must_hold_messages(talk):
    with pytest.raises(TemplateError, match="empty conversation"):
        talk.conversation.observe([])


def test_one_agent_serves_many_conversations(talk):
    other = talk.agent.begin()
    talk.conversation.observe(user("Hi"))
    other.observe(user("Bye"))
    assert "Bye" not in talk.prompt()
    assert np.array_equal(other.sequences()[0].token_ids, other.prompt_ids())


def test_a_base_model_without_a_template_gets_text_as_it_is(tokenizer):
    assert agent_for(tokenizer).end_of_turn_ids
    tokenizer.chat_template = None
    conversation = agent_for(tokenizer).begin()
    conversation.observe(user("1+1="))
    assert tokenizer.decode(conversation.prompt_ids().tolist()) == "1+1="


THINKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def same_sequences(one, other):
    arrays = ("token_ids", "is_action", "logprobs", "versions", "turn")
    return len(one) == len(other) and all(
        (a.parent, a.fork_reason, a.samplings) == (b.parent, b.fork_reason, b.samplings)
        and all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in arrays)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("template", [CHATML, THINKS])
@pytest.mark.parametrize("forks_after", ["observation", "completion"])
def test_a_fork_is_what_a_conversation_of_its_own_would_be(talk_of, template, forks_after):
    """Also where the template takes thoughts out of the history, so that new sequences begin."""

    def said(talk, steps):
        for place, step in enumerate(steps):
            if place % 2:
                talk.say(step)
            else:
                talk.conversation.observe(user(step))
        return talk.conversation.sequences()

    before = ["How are you?", "hm</think>good", "And now?"]
    before += ["still</think>good"] if forks_after == "completion" else []
    start = len(before)
    ways = [(before + [f"{way} {step}" for step in range(start, 7)]) for way in ("one", "other")]
    alone = [said(talk_of(template), way) for way in ways]
    trunk, twin = talk_of(template), talk_of(template)
    said(trunk, before)
    twin.conversation = trunk.conversation.fork()
    for step in range(start, 7):  # in turns, so that what they shared by mistake would show
        for talk, way in zip((trunk, twin), ways, strict=True):
            talk.say(way[step]) if step % 2 else talk.conversation.observe(user(way[step]))
    for talk, sequences, way in zip((trunk, twin), alone, ways, strict=True):
        assert same_sequences(talk.conversation.sequences(), sequences)
        assert len(talk.conversation.messages) == len(way)
        assert len(sequences) == (1 if template == CHATML else len(talk.conversation.forks) + 1)
    assert (len(alone[0]) > 1) == (template == THINKS)
