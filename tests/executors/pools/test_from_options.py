import pytest

from turngym.config import parse_train
from turngym.envs.options import EnvPoolOptions
from turngym.errors import ConfigError
from turngym.executors.pools.from_options import make_pool, parse_resources, parse_weights
from turngym.learner.run.inputs import check_inputs


def test_texts_become_numbers():
    assert parse_weights("Math=2, CodeSandbox=0.5") == {"Math": 2.0, "CodeSandbox": 0.5}
    assert parse_weights(None) == parse_weights("") == {}
    assert parse_resources('{"envnode": 1, "disk": 0.5}') == {"envnode": 1.0, "disk": 0.5}
    assert parse_resources(None) == {}


@pytest.mark.parametrize("text", ["Math=", "=2", "Math=0", "Math=-1", "Math=inf", "Math=nan", "a=1,a=2", "a,"])
def test_weights_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match=r"--env_pool\.weights: wanted NAME=2,OTHER=1"):
        parse_weights(text)


@pytest.mark.parametrize("text", ["envnode", "[1]", '{"envnode": "1"}', '{"envnode": 0}', '{"envnode": true}', "1"])
def test_resources_that_are_none_are_refused(text):
    with pytest.raises(ConfigError, match=r"--env_pool\.resources: wanted a JSON object"):
        parse_resources(text)


def test_what_has_an_option_of_its_own_is_no_resource():
    with pytest.raises(ConfigError, match="'CPU' cannot be asked for here"):
        parse_resources('{"CPU": 2}')


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--env_pool.weights Math", "env_pool.weights"),
        ("--env_pool.num_workers 1 --env_pool.resources x", "env_pool.resources"),
        ("--env_pool.num_workers -1", "env_pool.num_workers must not be negative"),
        ("--env_pool.max_concurrency 0", "env_pool.max_concurrency must be at least 1"),
        ("--env_pool.backend process --env_pool.max_memory_gib 0", "env_pool.max_memory_gib must be positive"),
    ],
)
def test_mistakes_show_before_anything_is_loaded(words, message):
    with pytest.raises(ConfigError, match=message):
        check_inputs(parse_train(["--actor.model_name_or_path", "none", *words.split()]))


async def test_the_bounds_arrive(echo):
    pool = make_pool(EnvPoolOptions(max_concurrency=3), 60.0)
    await (await pool.make(echo, 30)).close()
    assert pool.stats().families["Echo"].limit == 3
