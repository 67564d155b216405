"""Collections whose workers are stand-ins on real backends, so that what is measured is all but the collecting.

fragment ─▶ sealed ─▶ workers: answer at once (`answering.py`) ─▶ gathered, copied, delivered as always
"""

from __future__ import annotations

from functools import partial

import numpy as np

from answering import StandIn, sealed
from swath.collectors.delivery import Shaper
from swath.collectors.jobs import WorkerJobs
from swath.collectors.joining import Joiner
from swath.collectors.messages import Description, Head, Tally
from swath.collectors.plan import Automatic, FragmentPlan, Renewal
from swath.collectors.service import CollectorService
from swath.collectors.tracker import FragmentTracker
from swath.group.gate import Gate
from swath.group.gather import AsReady, InOrder
from swath.group.group import WorkerGroup
from swath.group.stats import Counters
from swath.options import Budget, Survival
from swath.rollout.buffer import Rows
from swath.rollout.fragment import Fragment, Layout
from swath.weights.channel import Channel
from swath.weights.manifest import Manifest
from swath.workers.base import Job
from swath.workers.create import backend
from swath.workers.fleet import Fleet
from swath.workers.tickets import Name

MANY_S = 600.0


def fragment(envs: int, steps: int, observation: np.ndarray) -> Fragment:
    """A fragment in which every observation is this one."""
    room, shape = (envs, steps), (envs, steps, *observation.shape)
    seen, led_to = np.broadcast_to(observation, shape).copy(), np.broadcast_to(observation, shape).copy()
    no, ids = np.zeros(room, dtype=np.bool_), np.zeros(room, dtype=np.int64)
    action, log_prob = np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.float32)
    rows = Rows(
        observation=[seen],
        outputs=[action, log_prob],
        next_observation=[led_to],
        reward=np.zeros(room, dtype=np.float32),
        terminated=no,
        truncated=no.copy(),
        valid=None,
    )
    return Fragment(rows, ids, ids.copy(), 0)


def collection_of(
    place: str, n_workers: int, made: Fragment, *, sync: bool = False, ahead: int = 1
) -> CollectorService:
    """A collection of stand-ins that answer with this fragment."""
    envs, steps = made.ids.shape
    places = backend(place)
    resources = {"num_cpus": 0.01} if place == "ray" else {}

    def job(name: Name) -> Job:
        head = Head(name.worker, name.life, 0, made.frames, steps, Tally(), b"", 0)
        return Job(partial(StandIn, sealed(head), sealed(made)), name, resources=resources)

    fleet = Fleet(places, job, n_workers, Survival(placement_timeout_s=MANY_S))
    fleet.bring_up()
    group = WorkerGroup(fleet, Channel(places.share))
    layout = Layout((envs,), ("observation",), ("action", "action_log_prob"))
    described = dict.fromkeys(range(n_workers), Description(envs, steps, layout, Manifest.of(None), {}))
    jobs = WorkerJobs({}, described=described)
    counters, share, budget = Counters(), dict.fromkeys(range(n_workers), made.frames), Budget(made.frames)
    tracker = group.tracker = FragmentTracker(group, counters, jobs.replaces)
    plan = FragmentPlan(group, tracker, share, budget, Renewal(Automatic(), print))
    return CollectorService(
        group=group,
        jobs=jobs,
        plan=plan,
        gather=InOrder(group, plan, ahead) if sync else AsReady(group, plan, ahead),
        joiner=Joiner(described, [None] * n_workers, several=sync),
        shaper=Shaper(layout),
        budget=budget,
        batch_frames=made.frames * (n_workers if sync else 1),
        gate=Gate("stand-ins"),
    )
