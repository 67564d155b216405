"""A fork of the user's process has copies of its objects: it reaches nothing that it shares with its parent."""

import json
import subprocess
import sys

import pytest

from toys import DEADLINE_S

BEGIN = """
import json, os, sys, traceback
from pathlib import Path
import gymnasium as gym, numpy as np, torch
from swath import Collector, Evaluator, MultiAsyncCollector, MultiSyncCollector, WorkerSet
from swath.errors import Closed
from swath.report.atomic import replace_atomically
from swath.rollout_workers import RandomPolicy
from swath.workers.process.backend import ProcessBackend


class Counted(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 1e9, (1,), np.float32), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 1
        return np.full(1, self.steps, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.float32), 1.0, self.steps > 10, False, {}

    def close(self):
        if os.getppid() == parent or os.getpid() == parent:  # not in the workers, which a server has forked
            print("closed by", "the parent" if os.getpid() == parent else "a fork", flush=True)


class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, observation):
        return torch.zeros(observation.shape[:-1], dtype=torch.int64)


def refused(*acts):
    for each in acts:
        try:
            each()
        except Closed as error:
            assert "fork" in str(error), error
        else:
            raise AssertionError("a fork did it")


def fork(what):
    # Carry out a function in a fork, which then ends as a Python program does.
    pid = os.fork()
    if pid == 0:
        what()
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0, "the fork failed"


parent = os.getpid()
kept = ProcessBackend()  # all parts share its server, since another would take seconds to start
for name, part in json.loads(sys.argv[1]).items():
    print("part", name, flush=True)
    try:
        exec(part)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        if os.getpid() != parent:
            os._exit(1)
kept.close()
"""

PARTS = {
    "fragments": """
def let_go():
    global sync, other
    del sync, other


def publish_and_draw():
    refused(sync.update_policy_weights_, sync.next, other.update_policy_weights_, other.next)


def shut_down():
    sync.shutdown()
    other.shutdown()


policy, options = Policy(), {"frames_per_batch": 24, "prefetch": 1}
with (
    MultiSyncCollector([Counted] * 2, policy, **options) as sync,
    MultiAsyncCollector([Counted] * 2, policy, **options) as other,
):
    for what in (lambda: None, shut_down, let_go, publish_and_draw):
        fork(what)
        for collector in (sync, other) * 5:
            batch = collector.next()
            assert batch.numel() == 24 and (batch["observation"] > 0).all(), (what, batch["observation"])
            collector.update_policy_weights_()
    assert sync.stats()["restarts"] == other.stats()["restarts"] == 0
""",
    "envs": """
uses = [
    (Collector(Counted, None, frames_per_batch=24), lambda it: it.next()),
    (Evaluator(Counted, Policy(), num_trajectories=2, backend="thread"), lambda it: it.evaluate()),
    (WorkerSet(env_creator=lambda config: Counted(), default_policy_class=RandomPolicy, num_workers=0),
     lambda it: it.local_worker().sample()),
    (Evaluator(Counted, policy_factory=Policy, num_trajectories=2, backend="process"), lambda it: it.evaluate()),
]
for leaves in (True, False):  # a fork takes seconds to end, so it has all of them
    fork(lambda: [service.__exit__(None, None, None) for service, _ in uses if leaves])
for service, use in uses:
    with service:
        assert use(service) is not None
        print(type(service).__name__, flush=True)
""",
    "worker": """
class Forking(Counted):
    def __init__(self, raises):
        self.raises = raises

    def step(self, action):
        if self.steps == 3 and os.fork() == 0:
            if self.raises:
                raise RuntimeError("in a fork of a worker")
        return super().step(action)


kwargs = [{"raises": False}, {"raises": True}]
with MultiSyncCollector([Forking] * 2, None, frames_per_batch=24, create_env_kwargs=kwargs) as collector:
    for _ in range(5):
        assert (collector.next()["observation"] > 0).all()
    assert collector.stats()["restarts"] == 0
""",
    "draft": """
path = Path("file.txt")
with replace_atomically(path) as draft:
    draft.write_text("whole")
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0 and not path.exists()
assert path.read_text() == "whole"
""",
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return the lines that each part of one program has printed."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", BEGIN, json.dumps(PARTS)]
    folder = tmp_path_factory.mktemp("forks")
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S, cwd=folder)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    parts = [part.splitlines() for part in done.stdout.split("part ")[1:]]
    assert [part[0] for part in parts] == [*PARTS], done.stdout
    return {name: lines for name, *lines in parts}


def test_a_fork_leaves_the_fragments_of_its_parent_whole_whatever_it_does(printed):
    assert printed["fragments"] == []


def test_envs_of_this_process_and_evaluations_are_ended_by_it_and_by_no_fork(printed):
    ended = "closed by the parent"
    assert printed["envs"] == ["Collector", ended, "Evaluator", ended, "WorkerSet", ended, "Evaluator"]


def test_a_fork_within_a_worker_answers_nothing_in_its_place(printed):
    assert printed["worker"] == []


def test_a_fork_that_leaves_while_a_file_is_written_leaves_the_draft_to_its_parent(printed):
    assert printed["draft"] == []
