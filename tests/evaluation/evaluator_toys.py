"""Envs and policies for tests of `Evaluator`, and ways to make one, or one evaluation, with few words."""

from uneven_env import Shifted, UnevenEnv

from swath.evaluation.evaluate_policy import play_episodes
from swath.evaluation.options import EvaluatorOptions
from swath.evaluation.result import EvalResult, episodes_of
from swath.evaluators import Evaluator

PLACES = ("thread", "process")
N = 5
built = []


class Named(UnevenEnv):
    """Doubles rewards if its name is `double`; its class counts the builds."""

    def __init__(self, name="plain", render_mode=None):
        super().__init__(render_mode)
        self.name = name
        built.append(name)

    def step(self, action):
        observation, reward, *more = super().step(action)
        return observation, reward * (2 if self.name == "double" else 1), *more


class Predicts:
    """Adds 1 to the action unless it must be deterministic."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return (observation.sum(-1) + (not deterministic)) % 7, state


def evaluator(place="thread", **options):
    options = {"policy_factory": Shifted, "num_trajectories": N, **options}
    return Evaluator(options.pop("env", Named), options.pop("policy", None), backend=place, **options)


def evaluated(place="thread", **options):
    with evaluator(place, **options) as ev:
        return ev.evaluate()


def evaluate_once(policy, env, num_envs=None, **options):
    """Evaluate in the calling thread."""
    runner = play_episodes(EvaluatorOptions(env, policy, num_envs=num_envs, **options))
    return EvalResult({}, episodes_of(runner.rows), seeding=runner.seeding)
