"""The face for users of RLlib's `RolloutWorker` and `WorkerSet`, over the same core as the collectors.

Being built: what is here works for itself and is tested; the worker that joins it is still to come.

Public names are loaded at first use. Each has two lines here: an import for type checkers, and its home.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swath.rollout_workers.advantages import discount_cumsum as discount_cumsum
    from swath.rollout_workers.config import DEFAULT_POLICY_ID as DEFAULT_POLICY_ID
    from swath.rollout_workers.config import AlgorithmConfig as AlgorithmConfig
    from swath.rollout_workers.config import PolicySpec as PolicySpec
    from swath.rollout_workers.config import register_env as register_env
    from swath.rollout_workers.env_context import EnvContext as EnvContext
    from swath.rollout_workers.filters.base import Filter as Filter
    from swath.rollout_workers.filters.base import NoFilter as NoFilter
    from swath.rollout_workers.filters.mean_std import ConcurrentMeanStdFilter as ConcurrentMeanStdFilter
    from swath.rollout_workers.filters.mean_std import MeanStdFilter as MeanStdFilter
    from swath.rollout_workers.filters.named import get_filter as get_filter
    from swath.rollout_workers.filters.running_stat import RunningStat as RunningStat
    from swath.rollout_workers.filters.sharing import FilterManager as FilterManager
    from swath.rollout_workers.postprocessing import Postprocessing as Postprocessing
    from swath.rollout_workers.postprocessing import adjust_nstep as adjust_nstep
    from swath.rollout_workers.postprocessing import compute_advantages as compute_advantages
    from swath.rollout_workers.postprocessing import compute_bootstrap_value as compute_bootstrap_value
    from swath.rollout_workers.postprocessing import compute_gae_for_sample_batch as compute_gae_for_sample_batch
    from swath.rollout_workers.preprocessors import NoPreprocessor as NoPreprocessor
    from swath.rollout_workers.preprocessors import Preprocessor as Preprocessor
    from swath.rollout_workers.preprocessors import get_preprocessor as get_preprocessor

_HOME = {
    "DEFAULT_POLICY_ID": "swath.rollout_workers.config",
    "AlgorithmConfig": "swath.rollout_workers.config",
    "PolicySpec": "swath.rollout_workers.config",
    "register_env": "swath.rollout_workers.config",
    "EnvContext": "swath.rollout_workers.env_context",
    "ConcurrentMeanStdFilter": "swath.rollout_workers.filters.mean_std",
    "Filter": "swath.rollout_workers.filters.base",
    "FilterManager": "swath.rollout_workers.filters.sharing",
    "MeanStdFilter": "swath.rollout_workers.filters.mean_std",
    "NoFilter": "swath.rollout_workers.filters.base",
    "RunningStat": "swath.rollout_workers.filters.running_stat",
    "get_filter": "swath.rollout_workers.filters.named",
    "Postprocessing": "swath.rollout_workers.postprocessing",
    "adjust_nstep": "swath.rollout_workers.postprocessing",
    "compute_advantages": "swath.rollout_workers.postprocessing",
    "compute_bootstrap_value": "swath.rollout_workers.postprocessing",
    "compute_gae_for_sample_batch": "swath.rollout_workers.postprocessing",
    "discount_cumsum": "swath.rollout_workers.advantages",
    "NoPreprocessor": "swath.rollout_workers.preprocessors",
    "Preprocessor": "swath.rollout_workers.preprocessors",
    "get_preprocessor": "swath.rollout_workers.preprocessors",
}


if not TYPE_CHECKING:  # a type checker must see which names there are not

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {sorted(_HOME)}")
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(_HOME)
