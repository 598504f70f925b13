"""`turngym serve-rm`: the protocol in process, then the real server against our own client."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

from turngym.__main__ import main
from turngym.envs.rewards import load_reward
from turngym.learner.rewards.serve_options import ServedModelOptions, ServedTextOptions, ServeRmOptions
from turngym.learner.rewards.server import reward_app
from turngym.learner.rewards.text_scorer import TextScorer, load_scorer

TEXTS = ["ab", "a longer text, so that rows differ", "<|start|>user:żółw<|end|>", "ends with the padding<|end|>"]


@pytest.fixture(scope="module")
def reward_model(tiny_model: Path, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("reward_model")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
        mean=0.5,
        std=0.25,
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    return folder


def reference(folder: Path, texts: list[str]) -> list[float]:
    """transformers' own forward pass, one text at a time; without a padding token it reads the last one."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForSequenceClassification.from_pretrained(folder).eval()
    model.config.pad_token_id = None
    with torch.inference_mode():
        ids = [tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"] for text in texts]
        return [model(row).logits.item() for row in ids]


def options(folder: Path | None = None, max_len: int = 256, normalize: bool = False, **changes) -> ServeRmOptions:
    made = ServedModelOptions(None if folder is None else str(folder), normalize)
    return ServeRmOptions(reward=made, data=ServedTextOptions(max_len), **changes)


@asynccontextmanager
async def client_of(scorer: TextScorer, made: ServeRmOptions) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(reward_app(scorer, made, "m"))
    async with httpx.AsyncClient(transport=transport, base_url="http://rm") as client:
        yield client


@pytest.fixture(scope="module")
def scorer(reward_model: Path) -> TextScorer:
    return load_scorer(options(), str(reward_model))


async def test_rewards_equal_transformers_own(scorer, reward_model):
    async with client_of(scorer, options()) as client:
        body = {"query": TEXTS, "prompts": [""] * 4, "labels": [""] * 4}
        answer = (await client.post("/get_reward", json=body)).json()
        assert answer["rewards"] == pytest.approx(reference(reward_model, TEXTS), abs=1e-5)
        assert answer["scores"] == answer["rewards"]
        assert answer["extra_logs"] == {"is_cut": [0, 0, 0, 0]}
        assert len(set(answer["rewards"])) == 4
        assert (await client.post("/get_reward", json={"query": []})).json()["rewards"] == []


async def test_requests_at_once_get_their_own_rewards(scorer, reward_model):
    expected = reference(reward_model, TEXTS)
    async with client_of(scorer, options(max_tokens=64)) as client:
        answers = await asyncio.gather(
            *(client.post("/get_reward", json={"query": [TEXTS[n % 4], TEXTS[n % 3]]}) for n in range(24))
        )
    for n, answer in enumerate(answers):
        assert answer.json()["rewards"] == pytest.approx([expected[n % 4], expected[n % 3]], abs=1e-5)


async def test_moments_of_the_configuration_normalise(reward_model):
    made = options(normalize=True)
    async with client_of(load_scorer(made, str(reward_model)), made) as client:
        answer = (await client.post("/get_reward", json={"query": TEXTS})).json()
    assert answer["rewards"] == pytest.approx([(value - 0.5) / 0.25 for value in reference(reward_model, TEXTS)])


@pytest.mark.parametrize(("side", "kept"), [("right", "0123456789"), ("left", "abcdefghij")])
async def test_a_text_that_is_too_long_is_cut_where_the_tokenizer_says_and_marked(reward_model, tmp_path, side, kept):
    tokenizer = AutoTokenizer.from_pretrained(reward_model, truncation_side=side)
    tokenizer.save_pretrained(tmp_path)
    LlamaForSequenceClassification.from_pretrained(reward_model).save_pretrained(tmp_path)
    made = options(max_len=10)
    async with client_of(load_scorer(made, str(tmp_path)), made) as client:
        answer = (await client.post("/get_reward", json={"query": ["0123456789abcdefghij", "short"]})).json()
    assert answer["extra_logs"] == {"is_cut": [1, 0]}
    assert answer["rewards"] == pytest.approx(reference(reward_model, [kept, "short"]), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"not json", 400, "the body is not JSON"),
        (b"\xff", 400, "the body is not JSON"),
        (b"[1]", 422, 'a list of texts under "query"; got a list'),
        (b'{"queries": ["a"]}', 422, "got the keys ['queries']"),
        (b'{"query": "text"}', 422, 'a list of texts under "query"'),
        (b'{"query": ["a", 3]}', 422, "query 1 is 3; wanted a text"),
        (b'{"query": ["a", ""]}', 422, "query 1 is ''; wanted a text that is not empty"),
        (b'{"query": ["\\ud800"]}', 422, "query 0 is no Unicode text"),
    ],
)
async def test_bad_input_is_answered_with_what_was_wanted(scorer, body, status, message):
    async with client_of(scorer, options()) as client:
        answer = await client.post("/get_reward", content=body)
        assert answer.status_code == status
        assert message in answer.json()["detail"]
        assert (await client.get("/health")).json() == {"status": "ok", "model": "m", "waiting": 0}
        assert (await client.get("/get_reward")).status_code == 405


async def test_a_score_that_is_no_number_fails_its_request_only(scorer, monkeypatch):
    monkeypatch.setattr(scorer, "score", lambda rows: np.array([np.nan if len(row) == 3 else 1.0 for row in rows]))
    async with client_of(scorer, options()) as client:
        bad, good = await asyncio.gather(
            client.post("/get_reward", json={"query": ["a", "abc"]}), client.post("/get_reward", json={"query": ["ab"]})
        )
    assert (bad.status_code, bad.json()["detail"]) == (500, "the reward model gave nan for query 1")
    assert good.json()["rewards"] == [1]


async def test_a_request_has_a_deadline(scorer, monkeypatch):
    release = asyncio.Event()
    monkeypatch.setattr("turngym.learner.rewards.text_batcher.TextBatcher.score", lambda self, rows: release.wait())
    async with client_of(scorer, options(timeout_s=0.05)) as client:
        answer = await client.post("/get_reward", json={"query": ["a"]})
    assert answer.status_code == 503
    assert "no reward within 0.05 s" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--reward.model_name_or_path is missing"),
        ("--reward.model_name_or_path some/model --prot 1", "unknown option '--prot'. Did you mean '--port'?"),
        ("--reward.model_name_or_path some/model --port 70000", "--port must lie between 0 and 65535, got 70000"),
        ("--reward.model_name_or_path some/model --data.max_len 0", "--data.max_len must be at least 1, got 0"),
        ("--reward.model_name_or_path ./nowhere", "there is no model folder './nowhere'"),
        ("--reward.model_name_or_path some/model --host nowhere.invalid", "cannot listen on --host nowhere.invalid"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(words, message, capsys):
    assert main(["serve-rm", *words.split()]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["serve-rm", "--reward.model_name_or_path", "some/model", "--host", "127.0.0.1", "--port", str(port)]
        assert main(words) == 2
    assert "Address already in use" in capsys.readouterr().err


@contextmanager
def server(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command until it says where it listens."""
    command = [sys.executable, "-m", "turngym", "serve-rm", "--host", "127.0.0.1", "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(r"http://\S+/get_reward", line):
                yield process, found[0]
                break
        else:
            raise AssertionError(f"it ended with {process.wait(60)} and said {said!r}")
    finally:
        process.kill()
        process.wait(60)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
async def test_the_real_server_and_our_own_client(reward_model, end):
    with server("--reward.model_name_or_path", str(reward_model), "--data.max_len", "256") as (process, url):
        client = load_reward(f"{url},{url}", timeout_s=60.0)
        expected = reference(reward_model, TEXTS)
        answers = await asyncio.gather(*(client([TEXTS[n % 4]], [""], [""]) for n in range(40)))
        assert [reward.reward for (reward,) in answers] == pytest.approx([expected[n % 4] for n in range(40)], abs=1e-5)
        assert [reward.extra_logs for (reward,) in answers] == [{"is_cut": 0.0}] * 40
        process.send_signal(end)
        assert process.wait(30) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "stopped\n"


def test_the_configuration_keeps_its_moments(reward_model):
    """What `--reward.normalize_enable` reads survives being saved."""
    config = AutoConfig.from_pretrained(reward_model)
    assert (config.mean, config.std) == (0.5, 0.25)
