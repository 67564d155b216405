"""What Swath no longer has is refused by name: what is tried, the error, and the way out that its message names."""

import pytest

import swath
from swath import rollout_workers
from swath.rollout_workers import AlgorithmConfig, MultiAgentBatch, SampleBatch

COLLECTORS: list = [
    pytest.param(lambda: swath.RayReplayBuffer, AttributeError, "torchrl.data.RayReplayBuffer", id="RayReplayBuffer"),
]
UPDATE = r"call update_policy_weights_\(\) of the collector that is to have the weights"
WEIGHTS: list = [
    pytest.param(lambda: swath.WeightSyncScheme().send({}), RuntimeError, UPDATE, id="send by hand"),
    pytest.param(lambda: swath.WeightSyncScheme().receive(), RuntimeError, UPDATE, id="receive by hand"),
    pytest.param(lambda: swath.WeightSyncScheme().connect(), RuntimeError, UPDATE, id="connect by hand"),
    pytest.param(
        lambda: swath.Collector(
            "CartPole-v1", frames_per_batch=1, weight_recv_schemes={"policy": swath.RayWeightSyncScheme()}
        ),
        RuntimeError,
        UPDATE,
        id="a scheme that no collector of this process sends with",
    ),
]
EVALUATION: list = []
GONE_NAMES = {
    "RepeatedValues": "padded values and their lengths as two columns",
    **dict.fromkeys(("compress", "pack", "pack_if_needed", "unpack", "is_compressed"), "savez_compressed"),
}
GONE_OF_BATCHES = {
    "compress": "savez_compressed",
    **dict.fromkeys(("decompress_if_needed", "pack_if_needed"), "leave it out"),
    "set_get_interceptor": r"call to_device\(\) for tensors",
    **dict.fromkeys(("accessed_keys", "added_keys", "deleted_keys"), "name the columns you need"),
}
GONE_SETTINGS = {
    "compress_observations": "store batches with numpy.savez_compressed",
    "sampler_perf_stats_ema_coef": "means over all steps",
    "horizon": "TimeLimit",
}
BATCHES: list = [
    *(
        pytest.param(lambda name=name: getattr(rollout_workers, name), AttributeError, way_out, id=name)
        for name, way_out in GONE_NAMES.items()
    ),
    *(
        pytest.param(lambda made=made, name=name: getattr(made, name), AttributeError, way_out, id=f"batch.{name}")
        for made in (SampleBatch(), MultiAgentBatch({}, 0))
        for name, way_out in GONE_OF_BATCHES.items()
    ),
    *(
        pytest.param(
            lambda name=name: SampleBatch(a=[1]).to_device("cpu", **{name: 1}), ValueError, "torch.cuda.stream", id=name
        )
        for name in ("use_stream", "stream")
    ),
    *(
        pytest.param(lambda name=name: AlgorithmConfig().env_runners(**{name: 0.5}), ValueError, way_out, id=name)
        for name, way_out in GONE_SETTINGS.items()
    ),
]
SAMPLING: list = []
COMMANDS: list = []
ROLLOUT: list = []
WORKERS: list = []


@pytest.mark.parametrize(
    ("attempt", "error", "way_out"),
    [*COLLECTORS, *WEIGHTS, *EVALUATION, *BATCHES, *SAMPLING, *COMMANDS, *ROLLOUT, *WORKERS],
)
def test_what_was_taken_out_is_refused_with_the_way_out(attempt, error, way_out):
    with pytest.raises(error, match=way_out):
        attempt()
