"""AICB's CSV workload of DeepSpeed ZeRO stage 3: parameters partitioned too.

Every tensor is gathered before its use and given up after it, except small ones
(``param_persistence_threshold``) and those that the pass needs again soon. In the first
micro-batch DeepSpeed does not know the order yet and gathers tensors one by one; afterwards
it gathers ahead, until ``prefetch_bucket_size`` or ``max_live_parameters``.

What AICB's files show and DeepSpeed does not do, kept: once the order's end is in sight
every tensor is given up after its use, persistent ones too; tensors gathered ahead are
computed at once, in the pass that gathers them, so that from the second micro-batch on the
passes have other products than they need; the weight gradient's row has no stage.

Source: aliyun/aicb 23eec3c4, ``workload_generator/generate_deepspeed_stage3_workload.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from perfmodel.workloads.formats.aicb_tables import AicbEvent
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.csv_events import ELEMENT_SIZE, ITERATION_END, collective
from perfmodel.workloads.twins.aicb.deepspeed_model import (
    Tensor,
    backward_products,
    forward_products,
)

INITIAL_BARRIERS = (
    "init._create_fp16_partitions_with_defragmentation",
    "init._setup_for_real_optimizer",
    "init._setup_for_real_optimizer",
)


def partitioned_parameters(arguments: AicbArguments, tensors: Sequence[Tensor]) -> list[AicbEvent]:
    """Return the rows of ZeRO stage 3.

    Parameters
    ----------
    arguments : AicbArguments
    tensors : sequence of Tensor
        The model's parameters in the order of the forward pass.

    Returns
    -------
    list of AicbEvent
    """
    run = _Run(arguments, tensors)
    run.start()
    for _ in range(arguments.epoch_num):
        for _ in range(arguments.micro_batches):
            run.forward()
            run.backward()
        run.step()
    return run.events


class _Run:
    """Follows the coordinator of partitioned parameters through a training run.

    A step of the order is a tensor's use: n forward, then n backward, last tensor first.
    """

    def __init__(self, arguments: AicbArguments, tensors: Sequence[Tensor]) -> None:
        self.arguments = arguments
        self.tensors = tensors
        self.events: list[AicbEvent] = []
        self.live = [False] * len(tensors)
        self.live_elements = 0
        self.persistent = _persistent(arguments, tensors)
        self.kept = set(self.persistent)
        # (tensor, step) still to come; empty until the first backward pass has ended.
        self.order: deque[tuple[int, int]] = deque()
        self.fetched_for = [-1] * len(tensors)  # latest step that a tensor was fetched for
        self.bucket = 0  # elements of gradients that wait for their reduction
        self.phase = ""
        self.products = {
            "forward": {t: forward_products(arguments, t) for t in set(tensors)},
            "backward": {t: backward_products(arguments, t, "") for t in set(tensors)},
        }

    def start(self) -> None:
        """Broadcast the model, build the optimizer, gather the model once."""
        replicas = self.arguments.data_parallel
        if not self.arguments.amp_enabled:
            for tensor in self.tensors:
                self._add("broadcast", tensor.size, "init._broadcast_model", source=0)
        self.events += [AicbEvent("barrier", "all", replicas, 0, at) for at in INITIAL_BARRIERS]
        for tensor in self.tensors:
            self._add("all_gather", tensor.size, "init._allgather_params")
        self.events.append(ITERATION_END)

    def forward(self) -> None:
        """Use every tensor once, in order."""
        self.phase = "forward"
        for index in range(len(self.tensors)):
            self._fetch(index)
            self._give_up(index, index)

    def backward(self) -> None:
        """Use every tensor once, last first, and reduce gradients as the bucket fills."""
        self.phase = "backward"
        count = len(self.tensors)
        backwards = range(count - 1, -1, -1)
        for step, index in enumerate(backwards, count):
            self._fetch(index)
            self._give_up(index, step)
            elements = self.tensors[index].elements
            if elements + self.bucket > self.arguments.reduce_bucket_size:
                self._reduce()
            self.bucket += elements
        self.order = deque(zip([*range(count), *backwards], range(2 * count), strict=True))
        self.fetched_for = [-1] * count

    def step(self) -> None:
        """Reduce the rest, look for overflow and the norm, gather persistent tensors."""
        self.phase = "step"
        self._reduce()
        self._add("all_reduce", 1, "step.has_overflow")
        self._add("all_reduce", 8, "step.get_grad_norm_direct")
        self.live = [False] * len(self.tensors)
        self.live_elements = 0
        for index in self.persistent:
            self._gather([index])
        self.events.append(ITERATION_END)

    def _fetch(self, index: int) -> None:
        """Make a tensor live; with a known order, others after it as well."""
        if not self.order:
            if not self.live[index]:
                self._gather([index])
            self.events += self.products[self.phase][self.tensors[index]]
            return
        ahead: list[int] = []
        elements = 0
        if not self.live[index]:
            self.order.popleft()
            ahead.append(index)
            elements = self._make_live(index)
        while (
            self.order
            and elements < self.arguments.prefetch_bucket_size
            and self.live_elements < self.arguments.max_live_parameters
        ):
            future, step = self.order.popleft()
            self.fetched_for[future] = max(step, self.fetched_for[future])
            if not self.live[future]:
                ahead.append(future)
                elements += self._make_live(future)
        if ahead:
            self._add_gather(ahead)
            for future in ahead:
                self.events += self.products[self.phase][self.tensors[future]]

    def _give_up(self, index: int, step: int) -> None:
        """Free a tensor after its use, unless it stays or is needed again soon."""
        needed = index in self.kept or self.fetched_for[index] > step
        if not self.order or not needed:
            self.live[index] = False
            self.live_elements -= self.tensors[index].elements

    def _reduce(self) -> None:
        """Reduce the gradients in the bucket and scatter them to their owners."""
        size = self.bucket * ELEMENT_SIZE
        self._add("reduce_scatter", size, f"{self.phase}.reduce_scatter_fn")
        self.bucket = 0

    def _gather(self, indices: list[int]) -> None:
        """Make tensors live and gather them in one collective."""
        for index in indices:
            self._make_live(index)
        self._add_gather(indices)

    def _make_live(self, index: int) -> int:
        """Count a tensor as live; return its elements."""
        self.live[index] = True
        self.live_elements += self.tensors[index].elements
        return self.tensors[index].elements

    def _add_gather(self, indices: list[int]) -> None:
        """Write the collective that gathers tensors."""
        size = sum(self.tensors[index].size for index in indices)
        self._add("all_gather", size, f"{self.phase}.allgather_fn")

    def _add(self, kind: str, size: int, stage: str, source: int | None = None) -> None:
        """Write a collective of all data-parallel ranks."""
        replicas = self.arguments.data_parallel
        self.events.append(collective(kind, "dp_group", replicas, size, stage, source))


def _persistent(arguments: AicbArguments, tensors: Sequence[Tensor]) -> list[int]:
    """Return the tensors that stay on every rank: small ones, while the model's limit holds."""
    kept: list[int] = []
    elements = 0
    for index, tensor in enumerate(tensors):
        small = tensor.elements <= arguments.param_persistence_threshold
        if small and elements + tensor.elements <= arguments.model_persistence_threshold:
            kept.append(index)
            elements += tensor.elements
    return kept
