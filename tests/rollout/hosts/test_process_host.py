"""The host contract over envs in processes, and the answers of processes that fail."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from host_contract import CountedHostContract, opened, play
from test_host_contract import ACTIONS, NESTED_ACTIONS

from swath.errors import EnvProcessLost, SwathError
from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.gymnasium import EnvListHost
from swath.rollout.hosts.parallel import Processes, ProcessHost
from swath.rollout.hosts.vector import VectorHost
from swath.testing import Counting, CountingEnv, Script
from swath.workers.process.backend import ProcessBackend

WAIT_S = 600.0
SHARES = (range(2), range(2, 3))
TWO = Processes(2)


@pytest.fixture(scope="module", autouse=True)
def fork_server():
    """Keep the process that forks env processes alive between tests."""
    backend = ProcessBackend()
    yield
    backend.close()


def a_list(counting, envs):
    return EnvListHost([CountingEnv(i, counting) for i in envs])


def sync_vector_env(counting, envs, mode):
    return VectorHost(SyncVectorEnv([partial(CountingEnv, i, counting) for i in envs], autoreset_mode=mode))


def in_processes(make, counting, options=TWO):
    return ProcessHost([partial(make, counting, envs) for envs in SHARES], options)


LONG = Counting(script=Script((20,)))
NESTED = Counting(observation="nested", action_space=NESTED_ACTIONS)
CASES = {
    "nested": (a_list, NESTED),
    "in place": (a_list, Counting(in_place=True)),
    **{f"actions {space}": (a_list, Counting(action_space=space)) for space in ACTIONS},
    **{f"vector env, {mode.name}": (partial(sync_vector_env, mode=mode), NESTED) for mode in AutoresetMode},
}


class TestCountingEnvs(CountedHostContract):
    n_steps = 25

    @pytest.fixture(params=CASES)
    def case(self, request):
        return CASES[request.param]

    @pytest.fixture
    def counting(self, case):
        return case[1]

    @pytest.fixture
    def make_host(self, case):
        return partial(in_processes, *case)


class TestHalf(CountedHostContract):
    """The first half of four processes, which has three envs."""

    n_steps = 25

    @pytest.fixture
    def counting(self):
        return NESTED

    @pytest.fixture
    def make_host(self, counting):
        shares = (range(2), range(2, 3), range(3, 4), range(4, 5))
        return lambda: ProcessHost([partial(a_list, counting, envs) for envs in shares], Processes(4)).halves()[0]


def test_halves_step_at_the_same_time_and_the_envs_can_be_asked_meanwhile(host):
    host.reset_all()
    first, second = host.halves()
    for half in (first, second):
        half.send(actions(half))
    assert len({*pids(host)}) == 2
    assert [half.step(actions(half)).observation[0][:, 2].tolist() for half in (second, first)] == [[1], [1, 1]]
    first.send(actions(first))
    assert host.reset_all()[0][:, 2].tolist() == [0, 0, 0], "a step that was given up is not forgotten"
    assert host.step(actions(host)).observation[0][:, 2].tolist() == [1, 1, 1]


@pytest.fixture
def host():
    with opened(partial(in_processes, a_list, LONG)) as host:
        yield host


def pids(host):
    return host.map(lambda env: os.getpid())


def actions(host):
    return [np.zeros((host.spec.num_envs, *leaf.shape), leaf.dtype) for leaf in host.spec.action]


def kill(host, env):
    os.kill(pids(host)[env], signal.SIGKILL)


def test_a_killed_process_fails_its_envs_and_the_rows_of_others_are_kept(host):
    host.reset_all()
    before = host.step(actions(host)).observation
    kill(host, 0)
    transition = host.step(actions(host))
    assert [env for env, _ in transition.failed] == [0, 1]
    assert {type(error) for _, error in transition.failed} == {EnvProcessLost}
    assert "env process 0 (life 0) was killed by SIGKILL" in str(transition.failed[0][1])
    assert not np.array_equal(transition.observation[0][2], before[0][2]), "env 2 was not stepped"


def test_a_process_is_begun_again_by_the_next_reset_of_its_envs(host):
    host.reset_all([1, 2, 3])
    old = pids(host)
    kill(host, 0)
    transition = host.step(actions(host))
    observation = host.reset([1], transition.observation)
    assert pids(host)[0] != old[0]
    assert pids(host)[2] == old[2]
    assert observation[0][1:, 2].tolist() == [0, 1], "env 1 does not begin an episode, or another one does"
    assert not host.step(actions(host), 1).failed
    failed = host.step(actions(host)).failed
    assert [env for env, _ in failed] == [0], "the episode of env 0 goes on in another process"
    host.reset([0], observation)
    assert not host.step(actions(host)).failed


def test_a_reset_in_a_killed_process_names_its_first_env(host):
    base = host.reset_all()
    kill(host, 2)
    with pytest.raises(EnvRaised) as raised:
        host.reset([2], base)
    assert raised.value.env == 2
    assert isinstance(raised.value.cause, EnvProcessLost)
    assert host.reset_all()[0].shape == base[0].shape


class Waits(CountingEnv):
    """Waits for ever in its second step."""

    def step(self, action):
        self.n_steps = getattr(self, "n_steps", 0) + 1
        if self.n_steps == 2:
            signal.pause()
        return super().step(action)


def make_waiting(counting, envs):
    kind = Waits if 0 in envs else CountingEnv
    return EnvListHost([kind(i, counting) for i in envs])


def test_a_process_that_takes_too_long_is_killed():
    with opened(partial(in_processes, make_waiting, LONG, Processes(2, timeout_s=5.0))) as host:
        host.reset_all()
        assert not host.step(actions(host)).failed
        failed = host.step(actions(host)).failed
        assert [env for env, _ in failed] == [0, 1]
        assert "took longer than step_timeout_s=5" in str(failed[0][1])


class Raises(CountingEnv):
    """Raises in its second step."""

    def step(self, action):
        self.n_steps = getattr(self, "n_steps", 0) + 1
        if self.n_steps == 2:
            raise ZeroDivisionError("in the env")
        return super().step(action)


def make_raising(counting, envs):
    return EnvListHost([(Raises if i == 1 else CountingEnv)(i, counting) for i in envs])


def test_an_exception_has_its_type_and_the_traceback_of_its_process():
    with opened(partial(in_processes, make_raising, LONG)) as host:
        host.reset_all()
        host.step(actions(host))
        ((env, error),) = host.step(actions(host)).failed
        assert env == 1
        assert isinstance(error, ZeroDivisionError)
        assert "in step" in "".join(error.__notes__)
        assert not host.step(actions(host), 1).failed


def test_an_answer_that_was_given_up_is_not_taken_for_a_later_one(host):
    class Interrupted(BaseException):
        pass

    def interrupt(*_):
        raise Interrupted

    host.reset_all()
    caller, before = os.getpid(), signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            host.map(partial(interrupt_the_caller, caller))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert pids(host) == [host.map(lambda env: os.getpid())[i] for i in range(3)]
    assert not host.step(actions(host)).failed


def interrupt_the_caller(caller, env):
    """Interrupt the caller, which waits for this answer, once; return what no other call returns."""
    if env.mark.env == 0:
        os.kill(caller, signal.SIGUSR1)
    return "interrupted"


def test_other_threads_may_ask_the_envs_while_they_are_stepped(host):
    host.reset_all()
    expected = pids(host)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(pids, host) for _ in range(50)]
        steps = [host.step(actions(host), 0) for _ in range(10)]
    assert all(answer.result(WAIT_S) == expected for answer in answers)
    assert [step.observation[0][0, 2] for step in steps] == [*range(1, 11)]


def make_once(path, counting, envs):
    if 0 in envs:
        if path.exists():
            raise OSError("no display")
        path.touch()
    return a_list(counting, envs)


def test_a_process_whose_next_life_cannot_be_built_is_tried_again(tmp_path):
    path = tmp_path / "built"
    with opened(partial(in_processes, partial(make_once, path), LONG)) as host:
        base = host.reset_all([1, 2, 3])
        kill(host, 0)
        host.step(actions(host))
        for _ in range(2):
            with pytest.raises(EnvRaised) as raised:
                host.reset([0, 1], base)
            assert isinstance(raised.value.cause, OSError)
        path.unlink()
        host.reset([0, 1], base)
        assert not host.step(actions(host)).failed
        assert len({host.seed_of(env) for env in range(3)} | {1, 2, 3}) == 5, "envs 0 and 1 have new seeds"


def test_infos_larger_than_a_packet_arrive_and_are_refused_when_they_are_gone(host):
    host.map(partial(set_info, size=100_000))
    host.reset_all()
    steps = [host.step(actions(host)) for _ in range(2)]
    assert [info["text"] for info in steps[1].info] == ["x" * 100_000] * 3
    with pytest.raises(SwathError, match="kept until the next step"):
        steps[0].info[0]


def set_info(env, size):
    step = env.step
    env.step = lambda action: (*step(action)[:4], {"text": "x" * size})


def test_what_cannot_be_pickled_is_an_error_and_the_process_goes_on(host):
    with pytest.raises(TypeError, match="pickle"):
        host.map(lambda env: (env for _ in range(2)))
    assert len(set(pids(host))) == 2


def test_envs_that_differ_in_their_spaces_are_refused():
    makes = [partial(a_list, Counting(observation=name), range(1)) for name in ("vector", "nested")]
    with pytest.raises(ValueError, match="must agree in their spaces: env process 1 has"):
        ProcessHost(makes, TWO)


def test_nothing_is_left_after_close(host):
    host.reset_all()
    before = pids(host)
    host.close()
    assert not [pid for pid in before if is_running(pid)]
    with pytest.raises(EnvProcessLost):
        host.map(id)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_same_data_as_in_one_process():
    hosts = [partial(a_list, NESTED, range(3)), partial(in_processes, a_list, NESTED)]
    with opened(hosts[0]) as host, opened(hosts[1]) as other:
        for a, b in zip(play(host, 40, [7, 8, 9]), play(other, 40, [7, 8, 9]), strict=True):
            for name in ("observation", "next_observation"):
                assert all(map(np.array_equal, getattr(a, name), getattr(b, name)))
            assert np.array_equal(a.reward, b.reward)
            assert list(a.ends) == list(b.ends)
            assert [*a.info] == [*b.info]
