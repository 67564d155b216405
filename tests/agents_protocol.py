"""What envs with several agents may return: asked of the host that steps them."""

from swath.rollout.hosts.base import EnvRaised
from swath.rollout.hosts.gymnasium import MultiAgentHost
from swath.rollout_workers import MultiAgentEnv


class Returning(MultiAgentEnv):
    def __init__(self, begun=({}, {}), stepped=None):
        self.begun, self.stepped = begun, stepped

    def reset(self, *, seed=None, options=None):
        return self.begun

    def step(self, action_dict):
        return self.stepped


def check_reset(observations, infos):
    """Raise what the host makes of a reset that returns this, if it refuses it."""
    try:
        MultiAgentHost([Returning((observations, infos))]).reset_all()
    except EnvRaised as raised:
        raise raised.cause from None


def check_step(returned):
    """Raise what the host makes of a step that returns this, if it refuses it."""
    host = MultiAgentHost([Returning(stepped=returned)])
    host.reset_all()
    for _, error in host.step([[{}]]).failed:
        raise error
