"""A worker's methods for weights, updates and its whole state."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from swath.options import count
from swath.rollout_workers.worker.learning import Batch
from swath.rollout_workers.worker.sampling_methods import SamplingMethods
from swath.rollout_workers.worker.state import restore, state_of
from swath.rollout_workers.worker.weights import Weights


class LearningMethods(SamplingMethods):
    """What a worker does with weights."""

    @property
    def weights_seq_no(self) -> int | None:
        """The number last given with weights; None if none was."""
        return self._book.seq_no

    @property
    def policy_version(self) -> int:
        """Own number of the weights: 0, then higher with each change."""
        return self._book.version

    @property
    def global_vars(self) -> dict[str, Any]:
        """What all workers know."""
        return self._book.global_vars

    def get_weights(self, policies: Collection[str] | str | None = None, inference_only: bool = False) -> Weights:
        """Copies of weights by policy id and name.

        Args:
            policies: an id or several; None: all.
            inference_only: without effect.

        Raises:
            KeyError: an unknown id.
        """
        return self._book.get(policies, inference_only=inference_only)

    def set_weights(
        self, weights: Any, global_vars: Mapping[str, Any] | None = None, weights_seq_no: int | None = None
    ) -> None:
        """Copy weights in, all or none.

        Args:
            weights: arrays or tensors by policy id and name; references of Ray are fetched. Those of policies that are
                not here are left out, and warned of once.
            global_vars: as for `set_global_vars`.
            weights_seq_no: their number; weights of the number that is here already are left out.

        Raises:
            ValueError: names or shapes that a policy does not have; the message lists them.
        """
        self._book.set(weights, weights_seq_no)
        if global_vars is not None:
            self.set_global_vars(global_vars)

    def get_global_vars(self) -> dict[str, Any]:
        """A copy of what all workers know: `timestep`, `num_grad_updates_per_policy`."""
        return deepcopy(self._book.global_vars)

    def set_global_vars(self, global_vars: Mapping[str, Any], policy_ids: Iterable[str] | str | None = None) -> None:
        """Take numbers over, and tell policies.

        Args:
            global_vars: added to what is known, as by `dict.update`.
            policy_ids: who is told; None: those that learn.

        Raises:
            KeyError: an unknown id.
        """
        self._book.set_global_vars(global_vars, policy_ids)

    def get_state(self) -> dict[str, Any]:
        """What it takes to go on elsewhere; nothing changes by it."""
        return state_of(self._policies, self._book)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `get_state` gave; what is not in it stays. Policies that are missing here are added."""
        with self._drawing():
            restore(self._policies, self._book, state)

    def learn_on_batch(self, samples: Batch) -> dict[str, Any]:
        """One update of each policy that learns and has rows in the batch, which stays as it is.

        Returns:
            What each tells, by policy id.

        Raises:
            WorkerLate: another of the ranks that learn as one has not come in time.
            Exception: what a policy's loss or a callback raised.
        """
        self._require_open("learn_on_batch")
        with self._drawing():
            info = self._learning.learn(samples)
        if info:
            self._book.changed()
        return info

    def sample_and_learn(
        self,
        expected_batch_size: int,
        num_sgd_iter: int | None = None,
        sgd_minibatch_size: int | None = None,
        standardize_fields: Sequence[str] = (),
    ) -> tuple[dict[str, Any], int]:
        """Sample once, and let each policy that learns go through its rows in shuffled minibatches.

        Args:
            expected_batch_size: env steps that the batch must be from.
            num_sgd_iter: passes; None: `config.num_epochs`.
            sgd_minibatch_size: rows of an update, the last one of a pass may have fewer; None:
                `config.minibatch_size`; 0: all rows.
            standardize_fields: columns that are brought to mean 0 and standard deviation 1 first, in a copy.

        Returns:
            By policy id the mean of what its updates of the last pass told; and the env steps.

        Raises:
            AssertionError: the batch is from another number of env steps.
            WorkerLate: another of the ranks that learn as one has not come in time.
            Exception: what `sample` or learning raised.
        """
        self._require_open("sample_and_learn")
        epochs = count("num_sgd_iter", self.config.num_epochs if num_sgd_iter is None else num_sgd_iter)
        given = self.config.minibatch_size if sgd_minibatch_size is None else sgd_minibatch_size
        size = None if given is None else count("sgd_minibatch_size", given, least=0) or None
        batch = self.sample()
        steps = batch.env_steps()
        if steps != expected_batch_size:
            raise AssertionError(f"expected_batch_size={expected_batch_size}, but the batch is from {steps} env steps")
        with self._drawing():
            info = self._learning.learn_in_passes(batch, epochs, size, standardize_fields)
        if info:
            self._book.changed()
        return info, steps

    def compute_gradients(self, samples: Batch, single_agent: bool | None = None) -> tuple[Any, dict[str, Any]]:
        """Gradients of the policies that learn; weights stay.

        Args:
            samples: the batch.
            single_agent: answer with the gradients and the info of `"default_policy"` alone.

        Returns:
            Gradients by policy id, and infos with the `batch_count`.

        Raises:
            ValueError: `single_agent`, but the batch is of other policies.
        """
        self._require_open("compute_gradients")
        with self._drawing():
            if single_agent:
                return self._learning.gradients_of_one(samples)
            gradients, infos = self._learning.gradients(samples)
        return gradients, {**infos, "batch_count": samples.count}

    def apply_gradients(self, grads: Any) -> None:
        """One step by gradients: by policy id, or those of `"default_policy"`.

        Raises:
            KeyError: an unknown id.
            ValueError: gradients that do not fit; nothing is applied.
            FloatingPointError: gradients that are not finite; nothing is applied.
        """
        self._require_open("apply_gradients")
        if self._learning.apply(grads):
            self._book.changed()

    def setup_torch_data_parallel(
        self, url: str, world_rank: int, world_size: int, backend: str, *, timeout_s: float = 300.0
    ) -> None:
        """Be one of several ranks, who begin with the weights of rank 0 and average their gradients from then on.

        If one rank raises while it samples or learns, the others wait for it until `timeout_s` is over.

        Args:
            url: where they meet, such as `tcp://host:port`.
            world_rank: 0 … `world_size` - 1.
            world_size: how many they are.
            backend: "gloo" or "nccl".
            timeout_s: how long one waits for the others, here and whenever they learn; then it raises `WorkerLate`,
                whose message names them, and the group has to be set up anew.

        Raises:
            RuntimeError: it is one already.
            ValueError: an argument out of range, a policy that is not torch, or others than those of the other ranks.
        """
        self._require_open("setup_torch_data_parallel")
        self._learning.join(url, world_rank, world_size, backend, timeout_s)
        self._book.changed()

    def teardown_torch_data_parallel(self) -> None:
        """Learn alone again; nothing happens if it does."""
        self._learning.leave()
