"""The host of vector envs: abilities of each kind, seeds, resets and failures."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from host_contract import play

from counting_vector import CountingVectorEnv
from swath import Collector
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.results import FINAL_OBSERVATIONS
from swath.rollout.hosts.vector import VectorHost, is_vector_env
from swath.testing import ENDLESS, Counting, CountingEnv, EnvBroke, Fault, Script

NEXT_STEP, SAME_STEP, DISABLED = AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED
ZERO = [np.zeros(2, dtype=np.int64)]
SHORT = Counting(script=Script((2,), ("terminated",)))
CAST = "ignore:.*precision lowered by casting to float32:UserWarning"


def own(mode=SAME_STEP, counting=SHORT, faults=None, **options):
    return VectorHost(CountingVectorEnv(2, counting, autoreset_mode=mode, faults=faults, **options))


def sync(mode=SAME_STEP, counting=SHORT, faults=None):
    fns = [lambda i=i: CountingEnv(i, counting, (faults or {}).get(i, ())) for i in range(2)]
    return VectorHost(SyncVectorEnv(fns, autoreset_mode=mode))


def marks(leaf):
    return [tuple(map(int, row[1:])) for row in leaf]


@pytest.mark.filterwarnings(CAST)
def test_envpool_resets_single_envs_and_cannot_be_seeded():
    envpool = pytest.importorskip("envpool")
    env = envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=5)
    host = VectorHost(env)
    assert is_vector_env(env)
    assert host.spec.next_step_autoreset
    assert (host.spec.resettable, host.spec.seeding) == (True, "none")
    base = host.reset_all([1, 2, 3])
    assert host.seed_of(0) is None
    fresh = host.reset([1], base)
    assert not np.array_equal(fresh[0][1], base[0][1])
    np.testing.assert_array_equal(fresh[0][[0, 2]], base[0][[0, 2]])


def test_a_vector_env_that_cannot_reset_single_envs_raises_with_a_remedy():
    host = own(SAME_STEP)
    base = host.reset_all()
    with pytest.raises(EnvRaised) as caught:
        host.reset([0], base)
    assert "use a vector env with autoreset mode DISABLED" in str(caught.value.cause)


@pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": "sometimes"}, {"autoreset_mode": None}], ids=str)
def test_a_vector_env_without_autoreset_mode_is_refused(metadata):
    env = CountingVectorEnv(2)
    env.metadata = metadata
    with pytest.raises(ValueError, match=r"has autoreset_mode=.* in its metadata; it must be one of .*SAME_STEP"):
        VectorHost(env)


# ---- seeds


def test_a_list_of_seeds_goes_to_the_envs_of_gymnasium():
    host = sync(DISABLED)
    base = host.reset_all([5, 6])
    host.reset([1], base, [9])
    host.reset([0, 1], base, [None, 11])
    envs = host.env.envs
    assert [env.seeds for env in envs] == [[5, None], [6, 9, 11]]
    assert [host.seed_of(0), host.seed_of(1)] == [5, 11]


# ---- episodes


def test_in_next_step_mode_a_seed_resets_the_env_at_once():
    host = sync(NEXT_STEP)
    host.reset_all()
    host.step(ZERO)
    transition = host.step(ZERO)
    fresh = host.reset([0, 1], transition.observation, [7, None])
    assert marks(fresh[0]) == [(1, 0), (0, 2)]
    following = host.step(ZERO)
    assert list(following.void) == [1]
    assert marks(following.observation[0]) == [(1, 1), (1, 0)]


# ---- last observations


class Silent(CountingVectorEnv):
    """Sends the last observations of some envs only."""

    def __init__(self, sent):
        super().__init__(2, SHORT, autoreset_mode=SAME_STEP)
        self.sent = sent

    def step(self, actions):
        *returned, infos = super().step(actions)
        if not infos or not any(self.sent):
            return *returned, {}
        infos["final_obs"][~np.array(self.sent)] = -1
        return *returned, infos | {"_final_obs": np.array(self.sent)}


NOT_SENT = pytest.mark.parametrize("sent", [(False, False), (True, False)])


@NOT_SENT
def test_rows_without_a_last_observation_are_marked_where_that_is_allowed(sent):
    with Collector(lambda: Silent(sent), lambda obs: ZERO[0], frames_per_batch=8, final_observation="missing") as c:
        batch = c.next()
    ended, missing = batch["next", "done"][..., 0], batch["next", "final_observation_missing"][..., 0]
    assert ended.sum() == 4
    assert missing.equal(ended & ~torch.tensor(sent)[:, None])
    steps, after = batch["observation"][..., 2], batch["next", "observation"][..., 2]
    assert after.equal(torch.where(missing, 0, steps + 1))


@NOT_SENT
def test_a_vector_env_without_last_observations_is_an_error_with_a_remedy(sent):
    remedies = {"required": "pass final_observation='missing' to a collector", "missing": "or leave env_processes out"}
    for option, remedy in remedies.items():
        options = {"final_observation": option, "env_processes": 1 if option == "missing" else None}
        with (
            Collector(lambda: Silent(sent), lambda obs: ZERO[0], frames_per_batch=8, **options) as collector,
            pytest.raises(ValueError, match=remedy),
        ):
            collector.next()


@pytest.mark.parametrize("name", FINAL_OBSERVATIONS)
def test_last_observations_have_any_name_of_the_table(name):
    class Older(CountingVectorEnv):
        def step(self, actions):
            *returned, infos = super().step(actions)
            return *returned, {name: infos["final_obs"]} if infos else infos

    host = VectorHost(Older(2, SHORT, autoreset_mode=SAME_STEP))
    host.reset_all()
    host.step(ZERO)
    transition = host.step(ZERO)
    assert transition.ends.envs.tolist() == [0, 1]
    assert marks(transition.observation[0]) == [(0, 2), (0, 2)]


# ---- faults


@pytest.mark.filterwarnings("ignore:.*ERROR:UserWarning")  # gymnasium also warns of errors of its workers
def test_an_async_vector_env_whose_worker_raised_is_built_again():
    endless = Counting(script=Script((ENDLESS,)))
    faulty = [[Fault("raise", step=2)], []]

    def make():
        faults = faulty.pop(0)
        return AsyncVectorEnv([lambda i=i: CountingEnv(i, endless, faults if i else ()) for i in range(2)])

    host = VectorHost(make(), lambda: [make()])
    host.reset_all()
    assert not host.step(ZERO).failed
    failed = host.step(ZERO).failed
    assert type(failed[0][1]) is EnvBroke
    assert marks(host.rebuild()[0]) == [(0, 0), (0, 0)]
    assert marks(host.step(ZERO).observation[0]) == [(0, 1), (0, 1)]
    host.close()


# ---- the transitions themselves


@pytest.mark.filterwarnings(CAST)
def test_the_last_observations_of_envpool_show_the_fallen_pole():
    env = pytest.importorskip("envpool").make_gymnasium("CartPole-v1", num_envs=3, seed=5)
    begins, n_ends = [True] * 3, 0
    for step in play(VectorHost(env), 80):
        ended = [env for env, _, _ in step.ends]
        for env in set(range(3)).difference(step.void):
            assert np.abs(step.observation[0][env]).max() <= (0.05 if begins[env] else np.inf)
            place, _, angle, _ = np.abs(step.next_observation[0][env])
            assert (place > 2.4 or angle > np.pi / 15) == (env in ended)
            begins[env] = env in ended
        n_ends += len(ended)
    assert n_ends > 6
