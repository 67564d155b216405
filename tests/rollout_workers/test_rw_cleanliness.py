"""A hundred workers that were built, used and stopped leave nothing behind; and importing them imports no Ray."""

import gc
import subprocess
import sys
from itertools import pairwise

import pytest

from mock_envs import MockEnv
from swath.rollout_workers import PPOTorchPolicy, RandomPolicy, RolloutWorker, WorkerSet
from traces import left, require_no_more_than

SMALL = {"model": {"fcnet_hiddens": [4]}, "rollout_fragment_length": 4, "num_envs_per_env_runner": 2}
SMALL["observation_filter"] = "MeanStdFilter"


def build(kind, **options):
    return kind(env_creator=lambda _: MockEnv(5), config=SMALL, **options)


def build_and_use(n, log_dir):
    for _ in range(n):
        with build(RolloutWorker, default_policy_class=PPOTorchPolicy, log_dir=log_dir) as worker:
            worker.learn_on_batch(worker.sample())


def objects():
    gc.collect()
    return len(gc.get_objects())


def test_a_hundred_workers_leave_no_thread_descriptor_or_object(tmp_path):
    build_and_use(10, str(tmp_path))
    before, numbers = left(), [objects()]
    for _ in range(2):
        build_and_use(50, str(tmp_path))
        numbers.append(objects())
    require_no_more_than(before)
    assert not [object_ for object_ in gc.get_objects() if type(object_) is RolloutWorker]
    grown = min(after - before for before, after in pairwise(numbers))  # Python's own caches are filled once
    assert grown < 50, "less than one object per worker"


@pytest.mark.usefixtures("fork_server")
def test_a_hundred_workers_of_sets_leave_no_process_thread_descriptor_or_memory():
    options = {"default_policy_class": RandomPolicy, "backend": "process"}
    with build(WorkerSet, num_workers=1, **options):
        pass  # what this process keeps for all sets is there then
    before = left()
    for _ in range(5):
        with build(WorkerSet, num_workers=20, **options) as workers:
            assert workers.sample().count == 160
            assert len(left()[0] - before[0]) == 20
    require_no_more_than(before)


def test_to_import_the_package_loads_no_ray():
    code = "import sys, swath.rollout_workers; print('ray' in sys.modules, 'torchrl' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
