import pytest

from swath.cli.failure import UsageError
from swath.cli.train import RunConfig


def test_plain_values_give_the_same_configuration_again():
    config = RunConfig("X", frames=7, ppo={"gamma": 0.5})
    assert RunConfig.from_dict(vars(config)) == config


def test_a_configuration_of_another_version_is_refused():
    with pytest.raises(ValueError, match=r"unknown \['colour'\]"):
        RunConfig.from_dict({"env": "X", "colour": 1})


def test_a_resumed_run_can_be_longer_but_stays_the_run_it_was():
    config = RunConfig("X", envs=4)
    assert config.changed({"frames": 9, "envs": 4, "env": "X"}) == RunConfig("X", frames=9, envs=4)
    with pytest.raises(UsageError, match="--envs 8 is 4 in the run that --resume names; leave it out"):
        config.changed({"envs": 8})
    with pytest.raises(UsageError, match="ENV Y is X in the run"):
        config.changed({"env": "Y"})
