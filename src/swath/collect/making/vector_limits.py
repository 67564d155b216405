"""What an env that steps as a whole must be able to do for what is asked, checked before anything is collected."""

from __future__ import annotations

from typing import Any

from swath.options import EpisodeRules, Faults
from swath.rollout.hosts.specs import HostSpec


def require_truncated_key(spec: HostSpec, episodes: EpisodeRules) -> None:
    """Check that the last step of a fragment can be marked as truncated, if it must be.

    Raises:
        RuntimeError: no entry says so.
    """
    if episodes.set_truncated and not spec.truncates:
        raise RuntimeError(
            "set_truncated=True, but no truncated key could be found in the environment; "
            "call env.add_truncated_keys() before handing it in"
        )


def require_resettable(spec: HostSpec, episodes: EpisodeRules, faults: Faults, instance: Any) -> None:
    """Check that envs which only step as a whole can follow these rules.

    Args:
        spec: of their host.
        episodes: how long one may be.
        faults: what becomes of those that raise.
        instance: the env, if it was handed in; None: it is built by us, and can be once more.

    Raises:
        ValueError: they cannot; the message says what to use.
    """
    if episodes.max_frames is not None and not spec.resettable:
        raise ValueError(
            f"max_frames_per_traj={episodes.max_frames} must reset single envs of a vector env that cannot; "
            "use one with autoreset mode DISABLED, or gymnasium's SyncVectorEnv"
        )
    if faults.on_env_error == "reset" and not spec.alone and instance is not None:
        raise ValueError(f"on_env_error='reset' builds {type(instance).__name__} anew: pass a callable that returns it")
