"""What a session does with the folder of an earlier run, before a process starts."""

from types import SimpleNamespace

import pytest

from turngym.config import parse_train
from turngym.learner.run import session
from turngym.learner.run.folder import RunFolder


class StartedError(Exception):
    """The session got as far as Ray."""


def test_a_run_that_finds_no_checkpoint_moves_an_earlier_one_aside(tmp_path, monkeypatch, capsys):
    """It may have trained for days without saving, and is no less worth for `--ckpt.load_enable`."""

    def start(logs):
        raise StartedError

    monkeypatch.setattr(session, "make_plan", lambda *_: SimpleNamespace(num_steps=4, tool_parser_choice=""))
    monkeypatch.setattr(session, "Cluster", start)
    earlier = RunFolder(tmp_path / "run", resumes=False)
    earlier.write_config("a: 1\n")
    earlier.append_metrics({"step": 500})
    settings = parse_train(f"--agent env:Guess --ckpt.output_dir {tmp_path / 'run'} --ckpt.load_enable".split())
    inputs = SimpleNamespace(complaints=(), env=SimpleNamespace(env_class=object))
    with pytest.raises(StartedError):
        session.run_session(settings, inputs, "a: 2\n")
    assert (tmp_path / "run.previous" / "metrics.jsonl").read_text() == '{"step": 500}\n'
    assert "the earlier run was moved to" in capsys.readouterr().err
