"""Whether an env is what Gymnasium's interface promises: what it answers, and whether that is of its spaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from swath.doctor.env_autoreset import undeclared
from swath.doctor.fault import Fault
from swath.doctor.finding import Finding, Level, told
from swath.doctor.misfits import Misfit, misfits
from swath.doctor.stacks import users_line
from swath.doctor.subject import Subject, is_batched, is_walkable
from swath.doctor.walk import Moment, is_over, is_step, walk
from swath.rollout.hosts.explained import culprit, described
from swath.rollout.spaces import action_leaves, observation_leaves

RESET = "observation, info = env.reset(seed=…, options=…)"
STEP = "observation, reward, terminated, truncated, info = env.step(action)"
PARAMETERS = {"reset": "def reset(self, *, seed=None, options=None)", "step": "def step(self, action)"}
FORMS = {"reset": RESET, "step": STEP}
TWO = "return observation, info: {} where there is nothing to say,"
FIVE = "return five values, as Gymnasium 1 wants it,"
FIVE_OF_FOUR = "return five values: for done, terminated where the episode is over and truncated where a limit ends it,"
INTERFACE = "the env's interface"
"""What is said of an env that has another one, and cannot be walked through."""

MOVES = {
    "missing": "return the entry from reset and step, or take it out of observation_space",
    "dtype": "return np.asarray(observation, dtype={wanted}), or declare observation_space with dtype={value}",
    "shape": "return it in that shape, or declare observation_space with the shape that it has",
    "finite": "find the division or the overflow that makes them; Collector(check_finite=True) says in which step",
    "bounds": "clip it, or widen observation_space: networks and wrappers scale by these bounds",
}
"""What to do about a misfit of each kind."""


def check_env(subject: Subject) -> Iterator[Finding]:
    """Build the env and walk through it, until there is something wrong of each kind."""
    try:
        env = subject.make()
    except Exception as error:  # noqa: BLE001  that is what was found
        yield Finding(
            Level.ERROR, "building the env", told(error), "an env", "mend what builds it; nothing else can be examined"
        )
        return
    try:
        if is_walkable(env):
            yield from _walked(env, subject)
        else:
            yield unread(env)
    finally:
        subject.done_with(env)


def _walked(env: Any, subject: Subject) -> Iterator[Finding]:
    refused = [*unserved(env), *undeclared(env)]
    yield from refused
    if refused:
        return
    seen: set[str] = set()
    ends = steps = 0
    try:
        for moment in walk(env, subject.effort, subject.seed):
            steps += moment.call == "step"
            for finding in findings_of(moment, env):
                if finding.what not in seen:
                    seen.add(finding.what)
                    yield finding
            ends += moment.call == "step" and is_step(moment.answer) and is_over(moment.answer)
    except Fault as fault:
        yield raised(fault)
        return
    if not ends and not is_batched(env) and steps == subject.effort.steps:
        yield from endless(env, steps)


def unread(env: Any) -> Finding:
    """An env with another interface than Gymnasium's."""
    kind = type(env).__name__
    move = "nothing; look at what it wraps, if that is yours"
    return Finding(Level.NOTE, INTERFACE, kind, "Gymnasium's, for more than a look at it in use", move)


def unserved(env: Any) -> Iterator[Finding]:
    """Spaces that cannot be served."""
    alone = "single_" if is_batched(env) else ""
    readers: dict[str, Callable[[Any], Any]] = {"observation": observation_leaves, "action": action_leaves}
    for name, leaves in readers.items():
        space = getattr(env, f"{alone}{name}_space", None)
        if space is None:
            move = f"set self.{name}_space in its __init__: it says what {name}s of {type(env.unwrapped).__name__} are"
            yield _wrong(f"{name}_space", "none", "a space of gymnasium.spaces, such as Discrete(2) or Box", move)
            continue
        try:
            leaves(space)
        except (TypeError, ValueError) as error:
            wanted = "Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"
            yield _wrong(f"{name}_space", f"{space}", wanted, f"declare another, or wrap the env: {error}")


def findings_of(moment: Moment, env: Any) -> Iterator[Finding]:
    """What is wrong with one answer of the env."""
    answer = moment.answer
    if moment.call == "reset":
        if not (isinstance(answer, tuple) and len(answer) == 2):
            yield _wrong("what reset returns", described(answer), RESET, f"{TWO} in {culprit(env, 'reset')}")
            return
        yield from _observed(answer[0], env)
    elif not is_step(answer):
        yield _wrong("what step returns", described(answer), STEP, f"{_five(answer)} in {culprit(env, 'step')}")
        return
    else:
        yield from _observed(answer[0], env)
        yield from _rewarded(answer[1], env)
        yield from _flagged(answer, env)
    if not isinstance(answer[-1], Mapping):
        yield _wrong("info", described(answer[-1]), "a dict", "return {} where there is nothing to say")


def _observed(observation: Any, env: Any) -> Iterator[Finding]:
    for misfit in misfits(observation, env.observation_space):
        yield _misfitting(misfit)


def _misfitting(misfit: Misfit) -> Finding:
    """Values beyond their bounds are served all the same."""
    level = Level.WARNING if misfit.kind == "bounds" else Level.ERROR
    what = {"bounds": "bounds", "finite": "finiteness"}.get(misfit.kind, misfit.kind)
    move = MOVES[misfit.kind].format(value=misfit.value, wanted=misfit.wanted)
    return Finding(level, f"{what} of {misfit.key!r}", misfit.value, f"{misfit.wanted}, as its space says", move)


def _rewarded(reward: Any, env: Any) -> Iterator[Finding]:
    shape = (env.num_envs,) if is_batched(env) else ()
    wanted = f"numbers of shape {shape}" if shape else "one number"
    array = np.asarray(reward)
    if array.shape != shape or array.dtype.kind not in "biuf":
        yield _wrong("reward", f"{reward!r}", wanted, "return float(reward)")
    elif not np.isfinite(array).all():
        yield _wrong("reward", f"{reward}", "a finite number", "find the division or the overflow that makes it")


def _flagged(answer: Any, env: Any) -> Iterator[Finding]:
    shape = (env.num_envs,) if is_batched(env) else ()
    for name, flag in zip(("terminated", "truncated"), answer[2:4], strict=True):
        array = np.asarray(flag)
        if array.shape != shape or array.dtype != np.bool_:
            wanted = f"bools of shape {shape}" if shape else "True or False"
            yield _wrong(name, f"{flag!r}", wanted, f"return bool({name})")


def raised(fault: Fault) -> Finding:
    """The env raised."""
    line, form = users_line(fault.cause), FORMS.get(fault.call)
    what, value = f"env.{fault.call}", told(fault.cause)
    if line is not None or form is None:
        return Finding(Level.ERROR, what, value, "an answer", f"mend it{f'; the line is {line}' if line else ''}")
    who = culprit(fault.env, fault.call)
    if isinstance(fault.cause, TypeError) and "argument" in value:
        return Finding(Level.ERROR, what, value, PARAMETERS[fault.call], f"let {who} take these parameters")
    return Finding(Level.ERROR, what, value, form, f"look at what {who} returns")


def endless(env: Any, steps: int) -> Iterator[Finding]:
    """No episode has ended, and none will be truncated."""
    spec = getattr(env, "spec", None)
    if spec is None or spec.max_episode_steps is None:
        yield Finding(
            Level.WARNING,
            "ends of episodes",
            f"none in {steps:,} steps, and no limit",
            "episodes that end",
            "register it with max_episode_steps=…, wrap it in gymnasium.wrappers.TimeLimit, or collect with "
            "max_frames_per_traj=…: evaluations wait for ends",
        )


def _wrong(what: str, value: str, wanted: str, move: str) -> Finding:
    return Finding(Level.ERROR, what, value, wanted, move)


def _five(answer: Any) -> str:
    """Four values are those of Gym before 0.26."""
    return FIVE_OF_FOUR if isinstance(answer, tuple) and len(answer) == 4 else FIVE
