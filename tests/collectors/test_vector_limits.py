"""What a vector env must be able to do for what is asked of it."""

import pytest
from gymnasium.vector import AutoresetMode

from swath.collect.making.assembly import require_resettable
from swath.options import EpisodeRules, Faults
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.vector import VectorHost
from swath.testing import CountingEnv, CountingVectorEnv

COUNTED = CountingEnv()


def spec(mode):
    return VectorHost(CountingVectorEnv(2, autoreset_mode=mode)).spec


def test_a_step_limit_needs_envs_that_can_be_reset_alone():
    rules, faults = EpisodeRules(max_frames=5), Faults()
    require_resettable(spec(AutoresetMode.DISABLED), rules, faults, COUNTED)
    require_resettable(EnvListHost([CountingEnv()]).spec, rules, faults, COUNTED)
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        require_resettable(spec(mode), EpisodeRules(), faults, COUNTED)
        with pytest.raises(
            ValueError, match="max_frames_per_traj=5 must reset single envs of a vector env that cannot"
        ):
            require_resettable(spec(mode), rules, faults, None)


def test_a_vector_env_that_is_to_be_built_anew_must_not_be_an_instance():
    rules, faults = EpisodeRules(), Faults("reset")
    require_resettable(spec(AutoresetMode.SAME_STEP), rules, faults, None)
    require_resettable(EnvListHost([CountingEnv()]).spec, rules, faults, COUNTED)
    with pytest.raises(ValueError, match="on_env_error='reset' builds CountingEnv anew: pass a callable that"):
        require_resettable(spec(AutoresetMode.SAME_STEP), rules, faults, COUNTED)
