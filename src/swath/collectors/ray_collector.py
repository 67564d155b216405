"""`RayCollector`: experience from many workers that are Ray actors.

With `collector_class` an actor holds a whole collector, and draws from it by its own `next()`. Weights, state, seeds,
hooks and shutdown pass through to it, by its public methods.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeAlias

from tensordict import TensorDictBase

from swath.collectors.base import SHUTDOWN_S
from swath.collectors.collector import Collector
from swath.collectors.delivery import count_frames
from swath.collectors.jobs import expand, options_per_worker, sources_of, whole_share, worker_requests
from swath.collectors.messages import Description, FragmentRequest, Head, Seeding, Tally, WorkerRequest, signature_of
from swath.collectors.multi import ManyWorkers, MultiAsyncCollector, MultiCollector, MultiSyncCollector
from swath.collectors.options import WORKER_DEFAULTS, AnyOptions, Hooks, LocalOptions, RayOptions, defaults
from swath.collectors.remote import LIFE, WEIGHTS, Responder
from swath.collectors.service import add_workers
from swath.collectors.state import load_fleet
from swath.extras import import_extra
from swath.keys import TRAJ_IDS, VERSION
from swath.nearest import with_options
from swath.options import Survival, count, seconds
from swath.rollout.episodes.statistics import NO_EPISODES, EpisodeArray, EpisodeLog, concatenate, worker_and_life
from swath.seeds import fresh_root
from swath.weights.snapshot import Snapshot

SHUTDOWN_LIMIT_S = 24 * 3600.0
"""The driver ends the actor, and all processes in it, when their shutdown takes too long for the driver."""

Inner: TypeAlias = Collector | MultiCollector
CLASSES = {"single": Collector, "sync": MultiSyncCollector, "async": MultiAsyncCollector}
# Keywords of the classes with sub-processes that are set below, or that have no meaning in an actor.
SET_FOR_SUB_PROCESSES = ("num_workers", "collector_class", "cat_results", "update_at_each_batch")


class DrawnEpisodes(EpisodeLog):
    """Episodes of a collector, and the episodes that ended in the last draw."""

    last_draw = NO_EPISODES

    def add(self, episodes: EpisodeArray) -> None:
        """Add episodes that have ended."""
        super().add(episodes)
        self.last_draw = concatenate([self.last_draw, episodes])


class RemoteCollector(Responder):
    """A collector as one worker of a fleet.

    Args:
        request: its start-up data.
        kind: the class of the collector.
        keywords: keywords of its constructor, besides env, policy, frames, hooks and index.
    """

    def __init__(self, request: WorkerRequest, kind: type[Inner], keywords: Mapping[str, Any]) -> None:
        super().__init__(request)
        keywords = {"frames_per_batch": request.frames, "worker_idx": request.worker, **keywords}
        self._root = self._collector = kind(request.source.env, request.policy, **keywords)
        self._collection = self._collector.collection
        self._episodes = self._collection.counters.episodes = DrawnEpisodes()
        self._ends_with_env &= isinstance(self._collector, Collector)  # others replace their workers themselves
        self._life = request.life
        try:
            self.set_hooks(request.hooks)
            if self._life:
                self.restore({LIFE: self._life - 1})
            if request.seed is not None:
                self.seed_with(request.seed)
            elif request.copies_env:
                self._collector.set_seed(fresh_root())
            self._begin_writing(request, self.describe().layout, Hooks(postproc=request.hooks.postproc))
        except BaseException:
            self.close()
            raise

    def describe(self) -> Description:
        """Return the shapes of its batches and weights."""
        workers = self._collection.jobs.described
        first = workers[0]
        if isinstance(self._collector, Collector):
            batch, n_dims = self._collector.fake_tensordict(), len(first.layout.batch_shape) + 1
            return replace(first, signature=signature_of(batch, n_dims))
        if not isinstance(self._collector, MultiSyncCollector):
            return first
        layout = replace(first.layout, batch_shape=(len(workers), *first.layout.batch_shape))
        return replace(first, num_envs=sum(worker.num_envs for worker in workers.values()), layout=layout)

    def close(self) -> None:
        """Shut the collector down."""
        self._collector.shutdown(timeout=SHUTDOWN_LIMIT_S)

    def weights_version(self) -> int:
        """Return the version of its weights."""
        return self._collection.version

    def reset(self) -> None:
        """Begin fresh episodes in all envs."""
        self._drop_unwritten()
        self._collector.reset()

    def seed_with(self, seeding: Seeding) -> None:
        """Seed everything and begin fresh episodes."""
        self._drop_unwritten()
        self._collector.set_seed(seeding.root, seeding.static)

    def set_hooks(self, hooks: Hooks) -> None:
        """Set the functions that are called around fragments."""
        self._collector.pre_collect_hook, self._collector.post_collect_hook = hooks.before, hooks.after

    def move_to(self, index: int) -> None:
        """Take the index of another worker, and begin fresh episodes."""
        self._drop_unwritten()
        self._collector.worker_idx = index

    def state_dict(self) -> OrderedDict[str, Any]:
        """Return its `state_dict`; of several workers with the weights of the first."""
        saved = self._collector.state_dict()
        weights = {WEIGHTS: saved["worker0"][WEIGHTS]} if WEIGHTS in saved.get("worker0", {}) else {}
        return OrderedDict({"env_state_dict": OrderedDict(), LIFE: self._life, **weights, **saved})

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Restore a state of `state_dict`, in a new life."""
        self._drop_unwritten()
        self._collector.load_state_dict(state_dict, strict=strict)

    def restore(self, saved: Mapping[str, Any], seeding: Seeding | None = None) -> None:  # noqa: ARG002  it was saved
        """Restore a saved state, also of another number of workers."""
        lives = {f"worker{number}": {LIFE: saved.get(LIFE, 0)} for number in range(self._collector.num_workers)}
        self.load_state_dict({**lives, **saved}, strict=False)

    def stats(self) -> dict[str, Any]:
        """Return `stats()` of its collector."""
        return self._collector.stats()

    def get_model(self, model_id: str) -> Any:
        """Return the model of an id; of a collector with several workers a copy of it."""
        return self._collector.get_model(model_id)

    def apply_weights(self, models: Mapping[str, Snapshot], version: int) -> None:
        """Copy weights into the models, into all of them or none, and run this version."""
        self._collection.group.channel.publish(models, version=version)

    def next(self) -> TensorDictBase:
        """Return a batch of the collector's own `next`, on the CPU; users may call it by the handle, too.

        Raises:
            TypeError: `next` returned something else.
        """
        self._episodes.last_draw = NO_EPISODES
        batch = self._collector.next()
        if not isinstance(batch, TensorDictBase):
            kind = type(self._collector).__name__
            raise TypeError(f"next() of {kind} gave {type(batch).__name__}; it must give a TensorDict [*B, T]")
        return batch if batch.device is None else batch.cpu().clear_device_()

    def current_tally(self) -> Tally:
        """Return the counts of the collector, without frames that it has written."""
        stats = self.stats()
        discarded = stats["frames_discarded"] + stats["frames_dropped"]
        frames = stats["frames"] + discarded
        return Tally(stats["env_errors"], stats["restarts"], stats["fragments_lost"], frames, discarded)

    def produce(self, request: FragmentRequest) -> tuple[Head, TensorDictBase]:
        """Draw one batch, and return its head and the batch."""
        self._collection.set_random(request.randomly)
        batch = self.next()
        ids, versions = batch.get(TRAJ_IDS, None), batch.get(VERSION, None)
        next_id = 0 if ids is None else int(ids.max()) + 1
        if ids is not None:
            self._life = max(self._life, *(worker_and_life(number)[1] for number in ids[ids >= 0].unique().tolist()))
        version = self.weights_version() if versions is None else int(versions.min())
        episodes, tally = self._episodes.last_draw.tobytes(), self.current_tally()
        return Head(self._life, version, count_frames(batch), batch.shape[-1], episodes, next_id, tally=tally), batch


def class_of(collector_class: Any) -> type[Inner]:
    """Return the class of the collector in each actor.

    Raises:
        TypeError: not a class of swath, nor derived from one.
    """
    kind = CLASSES.get(collector_class, collector_class) if isinstance(collector_class, str) else collector_class
    if isinstance(kind, type) and issubclass(kind, Collector | MultiCollector) and kind is not MultiCollector:
        return kind
    raise TypeError(
        f"collector_class={collector_class!r} must be Collector ('single'), MultiSyncCollector ('sync'), "
        "MultiAsyncCollector ('async') of swath, or a class derived from one of them"
    )


def nest_collector(
    kind: type[Inner], request: WorkerRequest, further: Mapping[str, Any], number: int, survival: Survival
) -> WorkerRequest:
    """Return the start-up data of an actor that holds a collector.

    Args:
        kind: class of the collector.
        request: start-up data of a plain worker.
        further: keywords that only the class has.
        number: number of sub-processes, if it has some; late ones are replaced before the actor is.
        survival: limits of the outer collector.
    """
    changed = {name: getattr(request.options, name) for name in WORKER_DEFAULTS}
    keywords = {name: value for name, value in changed.items() if value is not WORKER_DEFAULTS[name]}
    keywords.pop("storing_device", None)  # the driver moves batches
    if issubclass(kind, MultiCollector):
        limit = survival.fragment_timeout_s
        keywords |= {
            "num_workers": number,
            "restarts": survival.restarts,
            "fragment_timeout_s": None if limit is None else limit / 2,
            "placement_timeout_s": survival.placement_timeout_s,
        }
    elif request.options.on_env_error == "restart":
        del keywords["on_env_error"]  # the actor is replaced
    return replace(request, make=partial(RemoteCollector, kind=kind, keywords={**keywords, **further}))


LOCAL_OPTIONS = {option.name for option in fields(LocalOptions)}
SET_BY_RAY = {
    *("create_env_fn", "policy", "frames_per_batch", "total_frames", "worker_idx", "num_collectors", "sync"),
    *("weight_updater", "weight_sync_schemes", "weight_recv_schemes", "progress"),
}
# Names of `collector_kwargs` whose value must be the same for all workers.
SAME_FOR_ALL = sorted(LOCAL_OPTIONS - SET_BY_RAY - {*WORKER_DEFAULTS})
UNSUPPORTED = {"interruptor", "backend", "backend_options"}


class RayCollector(ManyWorkers):
    """Batches of experience from workers that are Ray actors, on one machine or on a cluster.

    Args:
        create_env_fn: an env source, or a list of one per worker: a gymnasium id, a callable that returns an env, an
            env. Sources go to the workers by cloudpickle.
        policy: `None` (random actions), a TensorDict module, an `nn.Module` or a callable; workers act on copies of it.
        policy_factory: builds the policy in each worker instead; a list has one per worker.
        frames_per_batch: frames of a batch; with `sync=True` a multiple of the number of workers.
        total_frames: the run ends with the first batch that reaches it; `None` and negative numbers mean no end.
        sync: batches `[W, *B, T]` with a share of every worker; else batches `[*B, T]`, first ready first served.
        num_collectors: how many workers get a single source.
        ray_init_config: keywords of `ray.init()`, used if Ray is not up in this process.
        remote_configs: options of `ray.remote()` for the actors; a list has one dict per worker. By default one CPU,
            or one per env process, a fifth of a GPU if the cluster has some, and 2 GiB of memory if it has that for
            all. Torch uses as many threads in a worker as its `num_cpus` are, at least one.
        collector_kwargs: further keywords of `Collector` for the workers; a list has one dict per worker. They count
            where the argument here is at its default.
        collector_class: what is built in each actor. `Collector` (`"single"`): one worker. `MultiSyncCollector`
            (`"sync"`) or `MultiAsyncCollector` (`"async"`): `num_workers_per_collector` sub-processes, whose inner
            batch, `[n, *B, T]` or `[*B, T]`, is the actor's share; keywords of theirs may stand in `collector_kwargs`,
            too, and sub-processes that die are replaced in the actor. A class derived from one of the three is
            built with `Collector`'s keywords and drawn from by its own `next()`. Weights, `state_dict`, `set_seed`,
            `reset`, hooks and shutdown pass through to the class; `trajs_per_batch` and `add_collectors` do not.
        num_workers_per_collector: sub-processes in each actor, or, in a `Collector`, envs that are stepped together.
        create_env_kwargs: keywords for the id or callable; a list has one dict per worker.
        device: fills the other devices where these are `None`; all four may be lists, one entry per worker.
        storing_device: where batches live.
        env_device: where envs run.
        policy_device: where policies run.
        max_frames_per_traj: an episode is truncated at this many steps.
        init_random_frames: as many frames are collected with random actions first, in whole batches.
        reset_at_each_iter: begin new episodes with every fragment.
        split_trajs: one row per trajectory, padded with zeros, with a mask.
        trajs_per_batch: batches of this many complete episodes; `frames_per_batch` is then the size of a poll.
        replay_buffer: any object with `extend(td)`; batches are written to it, and iteration yields `None`.
        postproc: turns each batch into what is delivered.
        pre_collect_hook: called before each fragment, in the worker.
        post_collect_hook: called with each fragment `[*B, T]`, in the worker.
        exploration_type: how the policy picks actions.
        trust_policy: call the policy with the TensorDict, unchecked.
        plans: call TensorDict modules without containers, where that gives equal bits.
        no_cuda_sync: no explicit CUDA synchronisation; copies wait for their own data in any case.
        weight_updater: delivers weights in its own way: an instance or subclass of `WeightUpdaterBase`, or a callable.
        weight_sync_schemes: schemes by model: what can be updated. With one for `"policy"`, `policy` may be given
            together with `policy_factory`: it is then only where weights come from.
        weight_recv_schemes: schemes by model, whose newest weights are taken at the start of every batch.
        update_after_each_batch: publish the policy's weights whenever another batch is drawn.
        max_weight_update_interval: publish them before a worker makes more than so many fragments on one version.
        use_env_creator: wrap callables in TorchRL's `EnvCreator`.
        envs_per_worker: how many envs each worker builds and steps together.
        env_processes: the number of processes that a worker's envs live in, each with a share of
            `envs_per_worker`; or each with what a callable returns, if that is a vector env. `None` steps them where
            the policy acts.
        step_timeout_s: an env process that takes longer for a step or a reset is replaced; its envs have failed.
        overlap: have the policy act for one half of the env processes while the envs of the other half step. The rows
            are those without it, but the policy is called with half as many, and draws for each half.
        seed: as `set_seed(seed)` after construction.
        prefetch: how many batches or fragments are asked for ahead; `None` for 0 if synchronous, else 1.
        max_staleness: asynchronous only; fragments more versions behind are dropped and counted.
        restarts: how often workers that died are replaced.
        min_workers: with fewer that live or are coming back the run ends; `None` means all.
        fragment_timeout_s: a worker that takes longer for a fragment is replaced; `None` for no deadline.
        placement_timeout_s: a worker that is not ready by then is not coming; `None` for no deadline.
        on_env_error: `"raise"`, `"reset"` that env alone, or `"restart"` the worker.
        check_finite: raise `NonFinite` when an observation, reward or policy output is NaN or infinite.
        keep_float64: observations of float64 stay float64, for the policy too; `False` makes them float32 and warns
            once of a value of 2**24 or more, where float32 cannot tell neighbouring integers apart.
        final_observation: `"required"`, or `"missing"` for simulators that reset themselves and do not send the last
            observation of an episode: `("next", "final_observation_missing")`, bool `[*B, T, 1]`, says in which rows
            `"next"` has the first observation of another episode.
        info_keys: entries of the infos of gymnasium's envs, names or paths, to put under `"next"`: float32
            `[*B, T, 1]`, NaN where an info lacks the entry.
        progress: show workers, frames/s, staleness and more while it collects: `True`, or a `Progress`.

    Raises:
        ImportError: Ray is not installed; the message names the extra.
        TypeError: an argument of the wrong kind, or a policy or env that cannot be pickled.
        ValueError: a number out of range, options that contradict each other, workers whose shares differ.
        PlacementFailed: the cluster has no room, or workers were not ready in time.
        Exception: what building an env or a policy raised, as its own type.
    """

    @with_options(RayOptions)
    def __init__(self, options: RayOptions) -> None:
        source, frames = options.create_env_fn, count("frames_per_batch", options.frames_per_batch)
        number, per_actor = _number_of_workers(options), options.num_workers_per_collector
        envs = sources_of(_with_env_creator(source) if options.use_env_creator else source, number, "num_collectors")
        kind = self._kind = class_of(options.collector_class)
        if count("num_workers_per_collector", per_actor) > 1 and issubclass(kind, Collector):
            if options.envs_per_worker not in (None, per_actor):
                raise ValueError(
                    f"num_workers_per_collector={per_actor} and envs_per_worker={options.envs_per_worker} are both the "
                    "number of envs that an actor steps together; give one of them"
                )
            options = replace(options, envs_per_worker=per_actor)
        shared, initial = options.shared, defaults(RayOptions)
        changed = {name for name in shared.keys() & initial if shared[name] != initial[name]}
        settings = _settings_per_worker(shared, changed, options.collector_kwargs, len(envs), kind)
        first = {name: value for name, value in settings[0].items() if name in LOCAL_OPTIONS}
        local = AnyOptions(**{**vars(options), **first, "sync": bool(options.sync), "backend": "ray"})
        share = whole_share(frames, len(envs)) if options.sync else frames
        workers = worker_requests(local, envs, options.policy, [share] * len(envs), settings)
        workers = _with_resources(workers, options.remote_configs)
        if kind is not Collector:
            if local.trajectories.per_batch is not None:
                self._require_plain("trajs_per_batch")
            inner_options = [{name: setting[name] for name in setting.keys() - LOCAL_OPTIONS} for setting in settings]
            pairs = zip(workers, inner_options, strict=True)
            workers = [nest_collector(kind, worker, rest, per_actor, options.survival) for worker, rest in pairs]
        self._begin(local, workers)

    @property
    def remote_collectors(self) -> list[Any]:
        """Return handles of the live actors, in order of workers; a new list each time, empty after shutdown."""
        if self.collection.access.halted:
            return []
        handles: list[Any] = [handle for _, handle in sorted(self.collection.group.fleet.up.items())]
        return [handle.actor for handle in handles]

    def add_collectors(
        self,
        create_env_fn: Any,
        num_envs: int | None = None,
        policy: Any = None,
        collector_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        remote_configs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Add one worker per env source and block until they are ready; their indices go on counting.

        Asynchronous collection uses them at once, synchronous collection from the next batch that is asked for, whose
        shares are divided again.

        Args:
            create_env_fn: an env source, or a list of them.
            num_envs: copies of it that each worker steps together; `None` for one env, or a vector env.
            policy: `None` for the collector's policy, with the newest weights; another policy keeps its weights until
                the next update.
            collector_kwargs: keywords of `Collector`, a dict or a list of one per new worker.
            remote_configs: options of `ray.remote()`, a dict or a list of one per new worker.

        Raises:
            TypeError: `collector_class` is another class than `Collector`.
            RuntimeError: `worker_idx` is set.
            ValueError: shares would not be whole, or the new workers' batches or weights would differ.
            PlacementFailed: they were not ready within `placement_timeout_s`.
            Exception: what building an env or a policy raised. In all cases nothing is added.
        """
        self.collection.access.require_open()
        self._require_plain("add_collectors()")
        if self._worker_idx is not None:
            message = "with worker_idx, new workers would give the trajectory ids of the collector with the next index"
            raise RuntimeError(f"{message}; build it with all its workers")
        envs = list(create_env_fn) if isinstance(create_env_fn, list | tuple) else [create_env_fn]
        options, first = self.collection.options, self.collection.jobs.requests[0]
        inherited = vars(first.options) | {"envs_per_worker": num_envs}
        if policy is not None:
            inherited["policy_factory"] = None
        settings = _settings_per_worker(inherited, (), collector_kwargs, len(envs), Collector)
        if names := [name for setting in settings for name in SAME_FOR_ALL if name in setting]:
            raise ValueError(f"collector_kwargs has {names[0]!r}, which is the same for all workers; leave it out")
        actor = first.policy if policy is None else policy
        new = worker_requests(options, envs, actor, [first.frames] * len(envs), settings)
        add_workers(self.collection, _with_resources(new, remote_configs), own_weights=policy is not None)

    def _require_plain(self, feature: str) -> None:
        if self._kind is not Collector:
            raise TypeError(
                f"{feature} does not pass through to collector_class={self._kind.__name__}; leave collector_class out"
            )

    def state_dict(self) -> list[OrderedDict[str, Any]]:
        """Return one entry per worker, with its weights, transforms, seed and life, and the `coordinator`'s counters.

        Raises:
            WorkerLate: a worker did not answer in time.
            Exception: what stopped the background thread.
        """
        workers, counters = self._saved_states()
        return [OrderedDict(part, coordinator=counters) for part in workers.values()]

    def load_state_dict(self, state_dict: Mapping[str, Any] | Sequence[Mapping[str, Any]], strict: bool = True) -> None:
        """Restore a state of `state_dict`; drop pending fragments, and begin new episodes in new lives.

        Args:
            state_dict: one dict per worker, or one for all.
            strict: whether parts may not be missing.

        Raises:
            TypeError: neither a dict nor a list of dicts.
            KeyError: parts are missing, unless `strict=False`, or weights do not fit.
            ValueError: weights of other shapes, or another number of workers.
            WorkerLate: a worker did not answer in time.
        """
        self.collection.access.require_open()
        workers = sorted(self.collection.jobs.described)
        states = [state_dict] * len(workers) if isinstance(state_dict, Mapping) else state_dict
        if not (isinstance(states, list | tuple) and all(isinstance(state, Mapping) for state in states)):
            raise TypeError(f"the state is of type {type(state_dict).__name__}; give what state_dict() gave")
        if len(states) != len(workers):
            raise ValueError(f"the state is of {len(states)} workers, this collector has {len(workers)}; give as many")
        counters = states[0].get("coordinator", {"frames": sum(int(state.get("frames", 0)) for state in states)})
        load_fleet(self.collection, dict(zip(workers, states, strict=True)), counters, strict=strict)

    def shutdown(self, timeout: float | None = None, shutdown_ray: bool = False) -> None:
        """Stop background mode, ask the actors to close their envs, then end them. Twice is fine; from any thread.

        Args:
            timeout: seconds that workers have to close their envs; `None` for 10. Then they are killed.
            shutdown_ray: whether to end this process's connection to Ray, too; it stays up otherwise.

        Raises:
            ValueError: `timeout` is not a finite number of seconds; nothing has happened.
            Exception: what `env.close()` raised.
        """
        limit = SHUTDOWN_S if timeout is None else seconds("timeout", timeout)
        try:
            self._end(limit)
        finally:
            if shutdown_ray:
                import_extra("ray", extra="ray", purpose="for RayCollector").shutdown()

    async def async_shutdown(self, shutdown_ray: bool = False) -> None:
        """Call `shutdown` without blocking the event loop."""
        await asyncio.to_thread(self.shutdown, None, shutdown_ray)


def _number_of_workers(options: RayOptions) -> int | None:
    """Return the number of workers; `None` for the length of the list of sources.

    Raises:
        ValueError: lists of different lengths.
    """
    if options.num_collectors is not None or isinstance(options.create_env_fn, list | tuple):
        return options.num_collectors
    lists = (options.collector_kwargs, options.remote_configs)
    lengths = {len(entries) for entries in lists if isinstance(entries, list | tuple)}
    if len(lengths) > 1:
        raise ValueError(f"collector_kwargs and remote_configs are lists of lengths {sorted(lengths)}; give as many")
    return lengths.pop() if lengths else 1


def _settings_per_worker(
    options: Mapping[str, Any], changed: Collection[str], collector_kwargs: Any, n_workers: int, kind: type[Any]
) -> list[dict[str, Any]]:
    """Merge the options of a collector with its `collector_kwargs`, by worker.

    Args:
        options: options of the collector itself.
        changed: names of options that are not at their defaults.
        collector_kwargs: keywords of `Collector`, a dict or a list of one per worker.
        n_workers: W.
        kind: the class that is built in each actor; it may have further keywords.

    Raises:
        TypeError: not a keyword of `Collector`.
        ValueError: an option that the collector sets; two values for one option; workers that differ in an option that
            must be the same for all.
    """
    settings, first = options_per_worker(options, n_workers), dict[str, Any]()
    all_keywords = expand("collector_kwargs", collector_kwargs or {}, n_workers)
    for worker, (setting, keywords) in enumerate(zip(settings, all_keywords, strict=True)):
        if not isinstance(keywords, Mapping):
            raise TypeError(f"collector_kwargs has {type(keywords).__name__}; give a dict of keywords of Collector")
        for name, value in keywords.items():
            _require_known(name, kind)
            if name in changed and setting[name] != value:
                raise ValueError(f"{name}={setting[name]!r} here, but {value!r} in collector_kwargs; give one of them")
        setting.update(keywords)
        first = first or setting
        if differing := [name for name in SAME_FOR_ALL if setting.get(name) != first.get(name)]:
            raise ValueError(f"collector_kwargs: {differing[0]} differs between workers 0 and {worker}; give one value")
    return settings


def _require_known(name: str, kind: type[Any]) -> None:
    has_workers = not issubclass(kind, Collector)
    if name in UNSUPPORTED and not (has_workers and name == "backend"):
        raise ValueError(f"collector_kwargs has {name!r}, which workers on Ray cannot follow; leave it out")
    if name in SET_BY_RAY or (has_workers and name in SET_FOR_SUB_PROCESSES):
        raise ValueError(
            f"collector_kwargs has {name!r}, which RayCollector decides; pass it to RayCollector, or leave it out"
        )
    if kind is Collector and name not in LOCAL_OPTIONS:
        raise TypeError(f"collector_kwargs has {name!r}, which is no keyword of Collector")


def _with_resources(workers: Sequence[WorkerRequest], remote_configs: Any) -> list[WorkerRequest]:
    """Add resources and torch threads of each worker: a thread per whole CPU or env process, at least 1.

    A worker without resources asks for as many CPUs as it has threads.

    Raises:
        TypeError: not a dict.
        ValueError: a list of another length.
    """
    configs = [{} if config is None else config for config in expand("remote_configs", remote_configs, len(workers))]
    for config in configs:
        if not isinstance(config, Mapping):
            raise TypeError(f"remote_configs has {type(config).__name__}; give a dict of options of ray.remote()")
    threads = [
        max(1, int(config.get("num_cpus") or worker.options.env_processes or 1))
        for worker, config in zip(workers, configs, strict=True)
    ]
    triples = zip(workers, configs, threads, strict=True)
    return [replace(worker, resources=config, threads=number) for worker, config, number in triples]


def _with_env_creator(source: Any) -> Any:
    """Wrap callables in TorchRL's `EnvCreator`.

    Raises:
        ImportError: TorchRL is not installed.
    """
    creator = import_extra("torchrl.envs", extra="torchrl", purpose="for use_env_creator").EnvCreator
    if isinstance(source, list | tuple):
        return [_with_env_creator(entry) for entry in source]
    is_env = hasattr(source, "step") and not isinstance(source, type)
    return creator(source) if callable(source) and not is_env else source
