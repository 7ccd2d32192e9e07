"""AICB's CSV workloads of DeepSpeed, ZeRO stages 1 to 3, byte for byte, and their model.

The model of AICB's DeepSpeed workloads: LLaMA's parameters and their matrix products.

Source: aliyun/aicb 23eec3c4, ``workload_generator/mocked_model/MockedDeepspeed.py``; the
products are in the generators of the stages.

AICB's CSV workload of DeepSpeed: ZeRO stages 1, 2 and 3, byte for byte.

Stages 1 and 2 (`partitioned_optimizer`) keep whole parameters: gradients are reduced in
buckets as the backward pass fills them, parameters are gathered after the step. Stage 3 is in
`perfmodel.workloads.twins.aicb.deepspeed`, the model in
`perfmodel.workloads.twins.aicb.deepspeed`.

What AICB's files show and DeepSpeed does not do, kept: gradients have 2 bytes; a bucket
smaller than the first tensor leaves an empty all-reduce; buckets go on over micro-batches, so
gradients are reduced once per micro-batch; the initial barrier bears the size of the last
tensor; a tensor that begins where a rank's part ends has a slice of 0 bytes there.

Source: aliyun/aicb 23eec3c4, ``workload_generator/generate_deepspeed_stage1_2_workload.py``.

AICB's CSV workload of DeepSpeed ZeRO stage 3: parameters partitioned too.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.base.errors import StrategyError
from perfmodel.workloads.formats.aicb_tables import AicbEvent, format_aicb_csv
from perfmodel.workloads.twins.aicb.arguments import AicbArguments
from perfmodel.workloads.twins.aicb.csv_events import (
    ELEMENT_SIZE,
    ITERATION_END,
    check_rows,
    collective,
    csv_file_name,
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A parameter of the model; a vector has one column."""

    rows: int
    columns: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.columns

    @property
    def size(self) -> int:
        """Size with 16 bits per element [B]."""
        return self.elements * ELEMENT_SIZE


def llama_tensors(arguments: AicbArguments) -> tuple[Tensor, ...]:
    """Return the parameters in the order of the forward pass: 9 per layer and 3.

    Raises
    ------
    StrategyError
        More heads than the hidden size has elements.
    """
    hidden, inner = arguments.hidden_size, arguments.feed_forward_size
    if arguments.attention_heads > hidden:
        raise StrategyError(
            f"--num_attention_heads={arguments.attention_heads} is more than --hidden_size={hidden}"
        )
    heads = (hidden // arguments.attention_heads) * arguments.attention_heads
    norm, projection = Tensor(hidden, 1), Tensor(hidden, heads)
    attention = (projection, projection, projection, Tensor(heads, hidden))
    mlp = (Tensor(hidden, inner), Tensor(inner, hidden), Tensor(hidden, inner))  # gate, down, up
    layer = (norm, *attention, norm, *mlp)
    # The vocabulary is not padded, nothing is divided over tensor-parallel ranks.
    embedding = Tensor(arguments.vocab_size, hidden)
    head = Tensor(hidden, arguments.vocab_size)
    return (embedding, *layer * arguments.num_layers, norm, head)


def forward_products(arguments: AicbArguments, tensor: Tensor) -> list[AicbEvent]:
    """Return the product of the activations with a tensor; none for vectors."""
    if tensor.columns == 1 or not arguments.computes:
        return []
    return [_product(arguments, tensor, "forward.computation")]


def backward_products(arguments: AicbArguments, tensor: Tensor, stage: str) -> list[AicbEvent]:
    """Return the products for the gradients of a tensor's input, and of itself.

    AICB gives the input gradient the shapes of the forward product. `stage` is that of the
    second product.
    """
    if tensor.columns == 1 or not arguments.computes:
        return []
    tokens = arguments.micro_batch * arguments.seq_length
    shapes = ((tensor.rows, tokens), (tokens, tensor.columns))
    weight_gradient = AicbEvent("computation", message_size=shapes, stage=stage)
    return [_product(arguments, tensor, "backward.computation"), weight_gradient]


def _product(arguments: AicbArguments, tensor: Tensor, stage: str) -> AicbEvent:
    """Return the product of (batch, sequence, rows) and (rows, columns)."""
    activations = (arguments.micro_batch, arguments.seq_length, tensor.rows)
    shapes = (activations, (tensor.rows, tensor.columns))
    return AicbEvent("computation", message_size=shapes, stage=stage)


Slice = tuple[int, int, int]  # owner, first element, element after the last


def deepspeed_csv(arguments: AicbArguments) -> str:
    """Write the workload that AICB's DeepSpeed generators write.

    Parameters
    ----------
    arguments : AicbArguments

    Returns
    -------
    str
        Text of the CSV file.

    Raises
    ------
    StrategyError
        As of `deepspeed_events`.
    """
    return format_aicb_csv(deepspeed_events(arguments))


def deepspeed_events(arguments: AicbArguments) -> list[AicbEvent]:
    """Return the rows of `deepspeed_csv`.

    Raises
    ------
    StrategyError
        Pipeline stages (AICB would write an iteration without passes); automatic mixed
        precision in stages 1 and 2 (AICB stops); a bucket of no elements; a bucket over two
        micro-batches of a single owner; more rows than may be written.
    """
    stage = zero_stage(arguments)
    _check(arguments, stage)
    if stage == 3:
        return partitioned_parameters(arguments, llama_tensors(arguments))
    return partitioned_optimizer(arguments, llama_tensors(arguments), stage)


def file_name(arguments: AicbArguments) -> str:
    """Return the name that AICB gives the file."""
    return csv_file_name(arguments, f"deepspeed_stage{zero_stage(arguments)}")


def zero_stage(arguments: AicbArguments) -> int:
    """Return the ZeRO stage that AICB writes.

    Its generator of stage 3 always writes stage 3; that of stages 1 and 2 writes stage 2
    unless ``--stage=1`` is given.
    """
    if arguments.module == "generate_deepspeed_stage3_workload":
        return 3
    if arguments.module == "generate_deepspeed_stage1_2_workload":
        return 1 if arguments.stage == 1 else 2
    return arguments.stage


def partitioned_optimizer(
    arguments: AicbArguments, tensors: Sequence[Tensor], stage: int
) -> list[AicbEvent]:
    """Return the rows of ZeRO stage 1 or 2.

    Parameters
    ----------
    arguments : AicbArguments
    tensors : sequence of Tensor
        The model's parameters in the order of the forward pass.
    stage : int
        1 or 2. In stage 2, contiguous gradients are reduced to their owners only.

    Returns
    -------
    list of AicbEvent
    """
    replicas = arguments.data_parallel
    owned = stage == 2 and arguments.contiguous_gradients
    slices = owned_slices(tensors, replicas) if owned else []
    forward_of = {t: forward_products(arguments, t) for t in set(tensors)}
    backward_of = {t: backward_products(arguments, t, "backward.computation") for t in forward_of}
    forward = [event for tensor in tensors for event in forward_of[tensor]]
    backward = [(i, t.elements, backward_of[t]) for i, t in enumerate(tensors)][::-1]

    events = [_everywhere("broadcast", replicas, tensor.size, "init") for tensor in tensors]
    events.append(AicbEvent("barrier", "all", replicas, tensors[-1].size, "init.__init__"))
    events.append(ITERATION_END)
    bucket: list[int] = []  # tensors whose gradients wait, in the order they came
    held = 0  # their elements
    for _ in range(arguments.epoch_num):
        for _ in range(arguments.micro_batches):
            events += forward
            for index, elements, products in backward:
                if elements + held > arguments.reduce_bucket_size:
                    events += _reduce(bucket, held, slices, replicas, "backward")
                    bucket, held = [], 0
                bucket.append(index)
                held += elements
                events += products
        events += _reduce(bucket, held, slices, replicas, "step")
        bucket, held = [], 0
        events.append(_everywhere("all_reduce", replicas, 1, "step.has_overflow"))
        events += _gather_shards(arguments, sum(tensor.elements for tensor in tensors))
        events.append(ITERATION_END)
    return events


def owned_slices(tensors: Sequence[Tensor], replicas: int) -> list[tuple[Slice, ...]]:
    """Cut the flat buffer of all parameters into one part per rank, for ZeRO-2.

    Parameters
    ----------
    tensors : sequence of Tensor
    replicas : int

    Returns
    -------
    list of tuple of (int, int, int)
        For each tensor its slices: owner, first element, element after the last.

    Notes
    -----
    generate_deepspeed_stage1_2_workload.py:180-217. A part has ``ceil(elements / replicas)``
    elements.
    """
    total = sum(tensor.elements for tensor in tensors)
    part = -(-total // replicas)
    owner, begin = 0, 0
    slices = []
    for tensor in tensors:
        end = begin + tensor.elements
        own = []
        while (part_end := (owner + 1) * part) < end:
            own.append((owner, begin, part_end))
            begin = part_end
            owner += 1
        slices.append((*own, (owner, begin, end)))
        begin = end
    return slices


def _reduce(
    bucket: Sequence[int],
    held: int,
    slices: Sequence[tuple[Slice, ...]],
    replicas: int,
    phase: str,
) -> Iterator[AicbEvent]:
    """Yield the reductions of a bucket: one for all, or with slices one per run of an owner."""
    if not slices:
        yield _everywhere("all_reduce", replicas, held * ELEMENT_SIZE, f"{phase}.allreduce_bucket")
        return
    runs: list[list[int]] = []
    for index in reversed(bucket):
        for owner, begin, end in slices[index]:
            if runs and runs[-1][0] == owner:
                runs[-1][2] = end
            else:
                runs.append([owner, begin, end])
    for owner, begin, end in runs:
        if end < begin:
            raise StrategyError(
                "--contiguous_gradients: a bucket holds the end of one micro-batch and the "
                "beginning of the next for the same owner, where AICB writes a negative size: "
                "take a smaller --reduce_bucket_size or more replicas"
            )
        size = (end - begin) * ELEMENT_SIZE
        yield AicbEvent(
            "reduce", "dp_group", replicas, size, f"{phase}.average_tensor", destination=owner
        )


def _gather_shards(arguments: AicbArguments, elements: int) -> Iterator[AicbEvent]:
    """Yield the all-gathers of the updated parameters, each filled up to whole ranks.

    generate_deepspeed_stage1_2_workload.py:147-175; the last shard takes the remainder.
    """
    replicas = arguments.data_parallel
    shards = max(elements // arguments.allgather_bucket_size, 1)
    shard = elements // shards
    for index in range(shards):
        held = elements - index * shard if index == shards - 1 else shard
        size = -(-held // replicas) * replicas * ELEMENT_SIZE
        yield _everywhere("all_gather", replicas, size, "step.all_gather_dp_groups")


def _everywhere(kind: str, replicas: int, size: int, stage: str) -> AicbEvent:
    """Return a collective of all data-parallel ranks."""
    return collective(kind, "dp_group", replicas, size, stage)


def _check(arguments: AicbArguments, stage: int) -> None:
    """Refuse what AICB cannot write, and files without bound."""
    if arguments.pipeline_model_parallel > 1:
        raise StrategyError(
            f"--pipeline_model_parallel={arguments.pipeline_model_parallel}: AICB's DeepSpeed "
            "workload has no pipeline; 1 is needed"
        )
    if stage != 3 and arguments.amp_enabled:
        raise StrategyError(f"--amp_enabled with ZeRO stage {stage}: AICB itself stops here")
    if stage != 3 and arguments.allgather_bucket_size < 1:
        raise StrategyError("--allgather_bucket_size=0: at least 1 element is needed")
    check_rows(_most_rows(arguments, stage), arguments)


def _most_rows(arguments: AicbArguments, stage: int) -> int:
    """Return how many rows there are at most."""
    tensors = 9 * arguments.num_layers + 3
    passes = arguments.epoch_num * arguments.micro_batches
    rows_of_a_pass = tensors * (5 if arguments.computes else 2)
    rows = 2 * tensors + passes * rows_of_a_pass + arguments.epoch_num * tensors
    if stage == 3:
        return rows
    if stage == 2 and arguments.contiguous_gradients:
        rows += (passes + 1) * arguments.data_parallel
    hidden, inner = arguments.hidden_size, arguments.feed_forward_size
    layer = hidden * (4 * hidden + 3 * inner + 2)
    elements = arguments.num_layers * layer + (2 * arguments.vocab_size + 1) * hidden
    return rows + arguments.epoch_num * (elements // arguments.allgather_bucket_size)


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
