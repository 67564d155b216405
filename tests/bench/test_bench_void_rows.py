import gymnasium as gym

from swath.bench import Rounds, Setting, Subject, measure
from swath.bench import rounds as module


class Brief(gym.Env):
    """Every step ends an episode."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 1, 1.0, True, False, {}


def every_second_row_is_void():
    return gym.vector.SyncVectorEnv([Brief, Brief], autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)


def test_rows_that_are_no_transitions_are_not_counted(monkeypatch):
    counted = []
    count = module.valid_frames
    monkeypatch.setattr(module, "valid_frames", lambda batch: counted.append((count(batch), batch.numel())) or 16)
    measure(Subject(every_second_row_is_void, frames=32), [Setting("inline", 1, None)], Rounds(1, 0.0))
    assert counted == [(16, 32)]
