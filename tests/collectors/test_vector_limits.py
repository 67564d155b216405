"""What a vector env must be able to do for what is asked of it."""

import pytest
from gymnasium.vector import AutoresetMode

from counting_vector import CountingVectorEnv
from swath import Collector
from swath.testing import CountingEnv


def vector(mode):
    return CountingVectorEnv(2, autoreset_mode=mode)


def build(env, **options):
    Collector(env, frames_per_batch=4, **options).shutdown()


def test_a_step_limit_needs_envs_that_can_be_reset_alone():
    build(vector(AutoresetMode.DISABLED), max_frames_per_traj=5)
    build(CountingEnv, max_frames_per_traj=5)
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        build(vector(mode))
        with pytest.raises(
            ValueError, match="max_frames_per_traj=5 must reset single envs of a vector env that cannot"
        ):
            build(vector(mode), max_frames_per_traj=5)


def test_a_vector_env_that_is_to_be_built_anew_must_not_be_an_instance():
    build(lambda: vector(AutoresetMode.SAME_STEP), on_env_error="reset")
    build(CountingEnv(), on_env_error="reset")
    with pytest.raises(ValueError, match="on_env_error='reset' builds CountingVectorEnv anew: pass a callable that"):
        build(vector(AutoresetMode.SAME_STEP), on_env_error="reset")
