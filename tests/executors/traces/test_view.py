"""Episodes listed, filtered, sorted, and one of them whole."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from turngym.envs.images import as_image
from turngym.executors.store.store import TrajectoryStore

FIRST = "1/Guess/train/7/0"
ALL = ["1/Guess/train/7/0", "1/Guess/train/7/1", "2/Guess/train/7/0", "2/Guess/train/8/0", "2/Guess/train/7/0"]


def ids(out: str) -> list[str]:
    rows = [json.loads(line) for line in out.splitlines()]
    return [f"{row['step']}/{row['task']}/{row['attempt']}" for row in rows]


def test_the_run_is_what_it_is_taken_for(recorded):
    train = [s.trajectory for s in TrajectoryStore(recorded / "trajectories" / "train").read()]
    assert [t.rewards_per_turn.tolist() for t in train] == [[0, 1], [0, 0, 0.25], [1], [0]]
    assert [t.end_reason.value for t in train] == ["terminated", "terminated", "terminated", "failed"]
    (held_out,) = [s.trajectory for s in TrajectoryStore(recorded / "trajectories" / "eval").read()]
    assert [end.value for end in held_out.turn_ends] == ["stop", "stop", "turn_tokens"]


def test_a_table_for_people_and_pipes(traces, run):
    code, out, err = traces("view", run)
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].split() == [
        "split", "step", "task", "attempt", "reward", "score", "turns", "tokens", "end", "seconds", "engine", "version"
    ]  # fmt: skip
    rows = [line.split() for line in lines[1:-1]]
    assert rows[0][:9] == ["train", "1", "Guess/train/7", "0", "1", "1", "2", "10", "terminated"]
    assert [row[-2] for row in rows] == ["0", "1", "-", "-", "-"]
    assert rows[0][-1] == "3-4"
    assert rows[3][4:6] == ["-", "-"]  # a failure has no reward
    assert "failed: engine" in lines[4]
    assert rows[4][0] == "eval"
    assert lines[-1] == "5 episodes, 1 failed, mean reward 0.5625"


def test_one_json_object_a_line(traces, run):
    _, out, _ = traces("view", run, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert ids(out) == ALL
    assert rows[0]["reward"] == 1.0
    assert (rows[0]["oldest_version"], rows[0]["newest_version"]) == (3, 4)
    assert rows[3]["reward"] is None
    assert rows[3]["failure"]["kind"] == "engine"
    assert [row["split"] for row in rows] == ["train"] * 4 + ["eval"]
    assert [row["engine"] for row in rows] == [0, 1, None, None, None]


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ("--step 2", [2, 3, 4]),
        ("--step 1-2", [0, 1, 2, 3, 4]),
        ("--split eval", [4]),
        ("--task train/8", [3]),
        ("--failed", [3]),
        ("--end_reason failed", [3]),
        ("--end_reason engine", [3]),
        ("--end_reason terminated", [0, 1, 2, 4]),
        ("--min_reward 0.25", [0, 1, 2]),
        ("--max_reward 0.25", [1, 4]),  # and not the failed one
        ("--min_reward 0.1 --max_reward 0.9", [1]),
        ("--engine 1", [1]),
        ("--engine 0 --step 1", [0]),
        ("--sort engine --descending", [1, 0, 2, 3, 4]),
        ("--contains SAY --split train", [0, 1, 2, 3]),
        ("--contains I.SAY.9", [0]),
        ("--sort turns", [2, 3, 0, 1, 4]),
        ("--sort reward", [4, 1, 0, 2, 3]),  # what has none comes last
        ("--sort reward --descending", [0, 2, 1, 4, 3]),
        ("--descending", [4, 3, 2, 1, 0]),
        ("--sort reward --descending --limit 2", [0, 2]),
    ],
)
def test_filters_and_order(traces, run, words, places):
    _, out, _ = traces(
        "view", run, "--json", *[word.replace(".", " ") if "I." in word else word for word in words.split()]
    )
    assert ids(out) == [ALL[place] for place in places]


def test_a_long_list_says_what_it_leaves_out(traces, run):
    _, out, _ = traces("view", run, "--limit", 2)
    assert out.splitlines()[-1] == "5 episodes, 1 failed, mean reward 0.5625; the first 2 are shown, --limit shows more"
    assert len(out.splitlines()) == 4


def test_one_episode_whole(traces, run):
    code, out, _ = traces("view", run, FIRST)
    assert code == 0
    assert out.splitlines()[0] == f"train {FIRST}"
    for line in (
        "  env        env:Guess",
        "  reward     1",
        "  end        terminated after 2 turns, 10 tokens",
        "--- turn 0, reward 0, ended by stop, 2 tokens, version 3",
        "--- turn 1, reward 1, ended by stop, 8 tokens, version 4",
        "[assistant]\nI say 9\n[user]\nRight!",
    ):
        assert line in out
    assert "logprobs" not in out


def test_its_tokens(traces, run):
    _, out, _ = traces("view", run, FIRST, "--tokens")
    (stored,) = [s for s in TrajectoryStore(run / "trajectories" / "train").read() if s.trajectory.num_turns == 2]
    sequence = stored.trajectory.sequences[0]
    ids = sequence.token_ids[sequence.is_action].tolist()
    assert f"  ids       {ids[0]} {ids[1]}\n" in out
    assert "  logprobs  -2 -0.1\n  versions  3\n" in out
    assert f"  ids       {' '.join(map(str, ids[2:]))}\n" in out


def test_a_failure_is_shown_with_its_message(traces, run):
    _, out, _ = traces("view", run, "2/Guess/train/8/0")
    assert "FAILED engine in turn 1: EngineError: the script has no reply" in out
    assert "  reward " not in out


def test_what_a_model_writes_cannot_command_the_terminal(traces, run):
    _, out, _ = traces("view", run, "2/Guess/train/7/0", "--split", "eval")
    assert "\x1b" not in out
    assert "\\x1b[31m7" in out


def test_a_whole_record_as_json(traces, run):
    _, out, _ = traces("view", run, FIRST, "--json")
    record = json.loads(out)
    assert (record["schema"], record["split"], record["task"]) == (4, "train", "Guess/train/7")
    assert record["messages"][1] == {"role": "assistant", "content": "3"}


def test_a_step_that_holds_a_task_twice_shows_both(traces, run):
    store = TrajectoryStore(run / "trajectories" / "train")
    (first, *_) = store.read()
    store.write(1, [first.trajectory])
    assert traces("view", run, FIRST)[1].count(f"train {FIRST}\n") == 2
    assert len(traces("view", run, FIRST, "--json")[1].splitlines()) == 2


def test_a_run_its_trajectories_a_store_or_a_file(traces, run):
    for place, count in (("", 5), ("trajectories", 5), ("trajectories/eval", 1), ("trajectories/train", 4)):
        assert len(traces("view", run / place, "--json")[1].splitlines()) == count
    file = run / "trajectories" / "train" / "step_000001.jsonl.gz"
    assert ids(traces("view", file, "--json")[1]) == ALL[:2]
    elsewhere = file.rename(run / "episodes.gz")
    assert [json.loads(line)["split"] for line in traces("view", elsewhere, "--json")[1].splitlines()] == ["", ""]


def test_a_part_that_was_cut_off_is_told(traces, run):
    file = run / "trajectories" / "train" / "step_000002.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-120])
    code, out, err = traces("view", run, "--json")
    assert code == 0
    assert len(out.splitlines()) == 4
    assert err.startswith(f"turngym: {file}:2 is not a whole line")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("view /nowhere", "there is no '/nowhere'; wanted a run folder"),
        ("view EMPTY", "holds no trajectories; wanted a run folder"),
        ("view RUN --sort rewards", "--sort: unknown column 'rewards'. Did you mean 'reward'?"),
        ("view RUN --end_reason max_turn", "--end_reason: unknown 'max_turn'. Did you mean 'max_turns'?"),
        ("view RUN --step 3-1", "--step wants a step or a range such as 3-7, got '3-1'"),
        ("view RUN --step x", "got 'x'"),
        ("view RUN --limit 0", "--limit must be at least 1, got 0"),
        ("view RUN --tokens", "--tokens is for one episode"),
        ("view RUN 1/Guess/train/7/0 --limit 3", "one episode is named"),
        ("view RUN Guess/0", "named STEP/TASK/ATTEMPT, such as 12/Guess/train/7/0; got 'Guess/0'"),
        ("view RUN 1/Guess/train/7/2", "Did you mean '1/Guess/train/7/"),
        ("view RUN 5/Guess/train/7/0", "nothing of step 5 is kept; steps: [1, 2]"),
        ("view RUN --task nothing", "no episode in"),
        ("view RUN --agent_args.high 3", "--agent_args.high is for turngym traces replay"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(traces, run, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    code, out, err = traces(*[{"RUN": run, "EMPTY": tmp_path / "empty"}.get(word, word) for word in words.split()])
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_an_unknown_command_is_refused(traces, run):
    with pytest.raises(SystemExit, match="2"):
        traces("veiw", run)


def test_a_newer_store_is_refused_with_its_place(traces, tmp_path):
    (tmp_path / "step_000001.jsonl").write_text('{"schema": 99}\n')
    code, _, err = traces("view", tmp_path)
    assert code == 1
    assert "step_000001.jsonl:1 has schema 99" in err
    assert "update turngym" in err


@pytest.mark.slow
def test_listing_needs_no_torch(recorded):
    program = (
        "import sys\n"
        "from turngym.__main__ import main\n"
        "code = main(['traces', 'view', sys.argv[1]])\n"
        "print([name for name in ('torch', 'transformers', 'ray', 'pyarrow') if name in sys.modules], code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, recorded], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(recorded):
    program = "import sys; from turngym.__main__ import main; sys.exit(main(['traces', 'view', sys.argv[1], '--json']))"
    command = [sys.executable, "-u", "-c", program, recorded]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(120) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_attempts_that_branched_off_another_say_so(traces, recorded, tmp_path):
    (one, *_) = [stored.trajectory for stored in TrajectoryStore(recorded / "trajectories" / "train").read()]
    TrajectoryStore(tmp_path).write(1, [one, replace(one, attempt=1, branch_of=(0, 0))])
    _, out, _ = traces("view", str(tmp_path))
    assert [line.split()[2:5] for line in out.splitlines()[1:3]][1] == ["1", "of", "0"]
    _, out, _ = traces("view", str(tmp_path), "--json")
    assert [json.loads(line)["branch_of"] for line in out.splitlines()] == [None, [0, 0]]
    _, out, _ = traces("view", str(tmp_path), "1/Guess/train/7/1")
    assert "branch     off attempt 0, whose turns up to 0 it shares" in out


def test_images_are_numbered_and_measured(traces, run):
    store = TrajectoryStore(run / "trajectories" / "train")
    trajectory = next(store.read()).trajectory
    images = [as_image(np.zeros((height, 4, 3), np.uint8)) for height in (2, 3)]
    parts = [{"type": "text", "text": "see"}, *({"type": "image", "image": image} for image in images)]
    messages = ({**trajectory.messages[0], "content": parts}, *trajectory.messages[1:])
    store.write(3, [replace(trajectory, messages=messages)])
    _, out, _ = traces("view", run, f"3{FIRST[1:]}")
    assert "[user]\nsee\nimage 1 (4x2)\nimage 2 (4x3)\n" in out
