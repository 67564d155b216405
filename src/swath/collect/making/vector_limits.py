"""What a vector env must be able to do for what is asked of it, checked before anything is collected."""

from __future__ import annotations

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


def require_resettable(spec: HostSpec, episodes: EpisodeRules, faults: Faults, *, is_instance: bool) -> None:
    """Check that envs which only step as a whole can follow these rules.

    Raises:
        ValueError: they cannot; the message says what to use.
    """
    if episodes.max_frames is not None and not spec.resettable:
        raise ValueError(
            f"max_frames_per_traj={episodes.max_frames} must reset single envs of a vector env that cannot; "
            "use one with autoreset mode DISABLED, or gymnasium's SyncVectorEnv"
        )
    if faults.on_env_error == "reset" and not spec.alone and is_instance:
        raise ValueError("on_env_error='reset' builds a vector env anew: pass a callable, not an instance")
