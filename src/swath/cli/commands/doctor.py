"""`swath doctor`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from swath.cli.naming import require_name
from swath.cli.options import EXAMINATION, ExaminationCount


def doctor(
    env: str | None = None,
    /,
    *,
    policy: Annotated[str | None, Parameter(group=EXAMINATION, show_default=False)] = None,
    policy_factory: Annotated[str | None, Parameter(group=EXAMINATION, show_default=False)] = None,
    envs: ExaminationCount = None,
    workers: ExaminationCount = None,
    backend: Annotated[str | None, Parameter(group=EXAMINATION, show_default=False)] = None,
    steps: ExaminationCount = None,
    seconds: Annotated[float | None, Parameter(group=EXAMINATION, show_default=False)] = None,
    patience: Annotated[float | None, Parameter(group=EXAMINATION, show_default=False)] = None,
    seed: ExaminationCount = None,
    json: Annotated[bool, Parameter(group=EXAMINATION, negative="", show_default=False)] = False,
) -> int:
    """Look for what is wrong with an env, a policy, this machine and Ray, and say what to do about it.

    The exit code is 1 if there is an error among what was found, 0 if not, 2 if there is nothing to look at.

    Args:
        env: An id, such as CartPole-v1, or module:name, where name is a class or function that makes an env, an env, or
            an id that importing the module registers; modules of the current folder are found, too.
        policy: Who acts: a folder of `swath train`, a checkpoint of one, or module:name. [default: random actions]
        policy_factory: Who makes who acts, in each worker: module:name.
        envs: Envs that each worker is to step together. [default: 8]
        workers: Workers that there are to be. [default: 1]
        backend: Where they are to live: inline, process, thread or ray; what is wrong with Ray is an error only if it
            is asked for. [default: left open]
        steps: Most steps of each look at the env. [default: 1000]
        seconds: Time after which a look makes no further step. [default: 2]
        patience: Time after which a call of the env or the policy that has not come back is given up. [default: 60]
        seed: Seed of envs and actions. [default: 0]
        json: Print what was found as JSON, for scripts.
    """
    given = {
        "policy": policy,
        "policy_factory": policy_factory,
        "envs": envs,
        "workers": workers,
        "backend": backend,
        "steps": steps,
        "seconds": seconds,
        "patience": patience,
        "seed": seed,
    }
    name_of_env = require_name(env, "swath doctor CartPole-v1")
    from swath.cli.doctor import run_doctor  # noqa: PLC0415  imports torch

    return run_doctor(name_of_env, {name: value for name, value in given.items() if value is not None}, as_json=json)
