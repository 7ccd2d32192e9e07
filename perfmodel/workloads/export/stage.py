"""All nodes of one pipeline stage for one training step, with what each waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.training.step.program import (
    PHASE_NAMES,
    ProgramStep,
    host_share,
    pass_program,
)
from perfmodel.training.step.types import (
    ProjectedBlock,
    ProjectedOperation,
    ProjectedPart,
    ProjectedWorkload,
)
from perfmodel.workloads.export.program import (
    FIRST_STAGE,
    NEXT_IN_RING,
    NOBODY,
    PREVIOUS_IN_RING,
    NodeList,
    Parents,
    Slot,
    after,
    both,
    in_pieces,
    needing,
    stage_slots,
)
from perfmodel.workloads.trace import RECEIVE, SEND

# A chunk without layers passes on what it receives.
NOTHING = ProjectedBlock("", ProjectedPart("nothing", "nothing", (), *[0.0] * 6), (), ())
# By layers, less of a collective than this is not split off: its latency would outweigh it.
LEAST_SHARE = 0.1


def stage_nodes(
    workload: ProjectedWorkload, stage: int, *, layers: bool = False, serial: bool = False
) -> NodeList:
    """Return the nodes of one stage, in the order in which a device takes them up.

    Parameters
    ----------
    workload : ProjectedWorkload
    stage : int
    layers : bool
        One compute node for every block and phase, instead of one for every operation.
    serial : bool
        Collectives of all groups follow each other.
    """
    return _Stage(workload, stage, layers, serial).run()


@dataclass(frozen=True, slots=True)
class _Pass:
    """One pass of one micro-batch through one block."""

    slot: Slot
    block: ProjectedBlock
    opens: bool  # the first block of its slot
    closes: bool  # the last one


class _Stage:
    """Goes through the passes of a stage, remembering what the next node has to wait for."""

    def __init__(self, workload: ProjectedWorkload, stage: int, layers: bool, serial: bool) -> None:
        self.workload = workload
        self.framework = workload.framework
        self.number = stage
        self.stage = workload.stages[stage]
        self.places = workload.chunk_stages
        self.chunks = [chunk for chunk, place in enumerate(self.places) if place == stage]
        self.first: dict[int, Slot] = {}  # forward pass of each chunk
        self.last: dict[int, Slot] = {}  # backward pass of each chunk
        self.layers = layers
        self.nodes = NodeList(serial)
        self.tail: Parents = NOBODY  # what comes last in the order of the device
        self.ready: dict[int, int] = {}  # last node of the gather for a pass, by its number
        self.reduced: list[int] = []
        self.waiting: list[tuple[str, ProjectedOperation]] = []  # until backward has run
        self.messages = 0
        # Expert exchanges hide behind the opposite pass of another micro-batch.
        experts = int(workload.strategy["expert_parallel"]) > 1
        self.paired = experts and self.framework.overlap_expert_parallel
        self.programs: dict[tuple[str, bool, str], list[ProgramStep]] = {}

    def run(self) -> NodeList:
        """Add all nodes of the step."""
        slots = stage_slots(self.workload.order, self.number, paired=self.paired)
        self.first = {slot.chunk: slot for slot in slots[::-1] if slot.forward}
        self.last = {slot.chunk: slot for slot in slots if slot.completes}
        passes = [item for slot in slots for item in self._passes(slot)]
        gathered = dict.fromkeys(i for i, item in enumerate(passes) if self._gathers(item))
        following = dict(pairwise(gathered))
        ahead = self.framework.overlap_parameter_gather
        if gathered and (ahead or not self.workload.gathers_per_micro_batch):
            # Nothing can hide the first gather, or any where the framework does not overlap.
            for i in list(gathered)[:1] if ahead else gathered:
                node = self._gather(i, passes[i], self.tail)
            if not ahead:
                self.tail = needing((node,))
        previous = NOBODY  # what came last before the slot before this one
        for i, item in enumerate(passes):
            if item.opens:
                # Passes side by side take turns as they come.
                self.nodes.lane = str(item.slot.forward) if self.paired else ""
                beside = self._beside(passes, i)
                ended, start = self.tail, previous if beside else self.tail
                previous, self.tail = start, self._enter(item.slot, start, previous)
            if i in gathered and i not in self.ready:
                self.tail = needing((self._gather(i, item, self.tail),))
            if i in self.ready:
                self.tail = both(self.tail, needing((self.ready[i],)))
            begin = self.tail
            self._run_pass(item)
            if i in following and ahead:
                # Behind the nodes of this pass in the order of the device, but free to run
                # beside them. Where parameters are not kept, one block ahead.
                free = begin if self.workload.gathers_per_micro_batch else NOBODY
                self._gather(following[i], passes[following[i]], free)
            if item.slot.completes and self._reduces(item):
                self._reduce(item)
            if item.closes:
                self._leave(item.slot)
                if beside:
                    self.tail = both(ended, self.tail)
                if self.workload.reductions_per_micro_batch and item.slot.completes:
                    # A backward pass ends with its reductions, as FSDP's `finalize_backward`.
                    self.tail = both(self.tail, needing(self.reduced))
                    self.reduced.clear()
                    for name, operation in self.waiting:
                        node = self.nodes.collectives(name, self.tail, operation)
                        self.tail = needing((node,))
                    self.waiting.clear()
        self._finish(passes)
        return self.nodes

    def _passes(self, slot: Slot) -> list[_Pass]:
        chunk = self.stage.chunks[slot.chunk]
        blocks = (chunk if slot.forward else chunk[::-1]) or (NOTHING,)
        last = len(blocks) - 1
        return [_Pass(slot, block, i == 0, i == last) for i, block in enumerate(blocks)]

    def _gathers(self, item: _Pass) -> bool:
        """Tell whether the parameters of a block are gathered ahead of this pass."""
        if not item.block.gathers:
            return False
        first = item.slot == self.first[item.slot.chunk]
        return first or (self.workload.gathers_per_micro_batch and item.slot.sends)

    def _reduces(self, item: _Pass) -> bool:
        """Tell whether gradients are reduced as soon as this backward pass has ended."""
        last = item.slot == self.last[item.slot.chunk]
        every = self.workload.reductions_per_micro_batch
        return every or (last and self.framework.overlap_gradient_reduce)

    def _name(self, slot: Slot, label: str, what: str) -> str:
        return f"micro-batch {slot.micro_batch} {label} {what}"

    def _gather(self, index: int, item: _Pass, parents: Parents) -> int:
        """Gather the parameters of a block; gathers follow each other."""
        if self.ready:
            parents = both(after(parents), needing((next(reversed(self.ready.values())),)))
        else:
            parents = after(parents)
        label = item.block.label
        for operation in item.block.gathers:
            name = self._name(item.slot, label, operation.name)
            parents = needing((self.nodes.collectives(name, parents, operation),))
        self.ready[index] = parents[0][0]
        return self.ready[index]

    def _reduce(self, item: _Pass) -> None:
        """Reduce the gradients of a block, beside what follows or in its turn."""
        parents = self.tail
        label = item.block.label
        for operation in item.block.reductions:
            name = self._name(item.slot, label, operation.name)
            if self._waits(operation):
                self.waiting.append((name, operation))
                continue
            node = self.nodes.collectives(name, parents, operation)
            parents = needing((node,))
            self.reduced.append(node)
        if not self.framework.overlap_gradient_reduce:
            self.tail = parents

    def _waits(self, reduction: ProjectedOperation) -> bool:
        """Tell whether gradients among copies wait for all of backward (`price_shards`)."""
        copies = reduction.group.endswith("shard_copies")
        late = copies and not self.framework.overlap_gradient_copies
        return late and self.workload.reductions_per_micro_batch

    def _run_pass(self, item: _Pass) -> None:
        """Add the operations of one pass through one block."""
        part, slot = item.block.part, item.slot
        key = (part.name, slot.forward, slot.gradients)
        if key not in self.programs:
            program = pass_program(part.operations, slot.forward, slot.gradients)
            if self.layers:
                self.programs[key] = by_layers(in_pieces(program, _exposed_share))
            else:
                self.programs[key] = in_pieces(program, lambda item: item.tail)
        label = f"micro-batch {slot.micro_batch} {item.block.label}"
        starts: list[Parents] = []
        running: list[tuple[int, int]] = []  # (step that the node may run beside, node)
        for i, step in enumerate(self.programs[key]):
            ended = [node for last, node in running if last < i]
            starts.append(both(self.tail, needing(ended)))
            operation = step.operation
            name = f"{label} {PHASE_NAMES[operation.phase]} {operation.name}"
            if step.aside:
                begin = starts[min(step.first, i)]
                last = max(step.last, i)
                running += [(last, node) for node in self._communicate(name, begin, operation)]
                continue
            running = [(last, node) for last, node in running if last >= i]
            if operation.communicates:
                self.tail = needing(self._communicate(name, starts[i], operation))
            else:
                node = self.nodes.compute(
                    name, starts[i], operation.time, operation.flops, operation.traffic
                )
                self.tail = needing((node,))
        self.tail = both(self.tail, needing([node for _, node in running]))
        wait = part.host_forward
        if not slot.forward:
            wait = host_share(slot.gradients, part) * part.host_backward
        if wait > 0:
            name = f"{label} {_direction(slot)} host"
            self.tail = needing((self.nodes.host(name, self.tail, wait),))

    def _communicate(self, name: str, parents: Parents, item: ProjectedOperation) -> list[int]:
        """Add communication of a layer; return the nodes that end it."""
        if item.collective != "point_to_point":
            return [self.nodes.collectives(name, parents, item)]
        hops = max(1, round(item.count))
        send = receive = -1
        for hop in range(hops):
            tag, self.messages = self.messages, self.messages + 1
            text, about = f"{name} hop {hop}", (parents, item.size, item.time / hops)
            send = self.nodes.message(SEND, text, *about, NEXT_IN_RING, tag)
            receive = self.nodes.message(RECEIVE, text, *about, PREVIOUS_IN_RING, tag)
            parents = needing((send, receive))  # what has come is passed on
        return [send, receive]

    def _message(self, slot: Slot, incoming: bool) -> tuple[int, int]:
        """Return the tag of a message of this slot, -1 where there is none, and its peer.

        Boundary b lies ahead of chunk b of the whole model. Forward comes over the one
        ahead, and leaves over the one behind; backward the other way round.
        """
        chunk = self.chunks[slot.chunk]
        ahead = incoming == slot.forward
        other = chunk - 1 if ahead else chunk + 1
        alone = not slot.sends or not 0 <= other < len(self.places)
        if alone or self.places[other] == self.number:
            return -1, 0
        number = max(chunk, other) * self.workload.micro_batches + slot.micro_batch
        return 2 * number + (not slot.forward), FIRST_STAGE + self.places[other]

    def _beside(self, passes: Sequence[_Pass], index: int) -> bool:
        """Tell whether a backward pass runs beside the forward pass ahead of it."""
        before, slot = passes[index - 1].slot if index else None, passes[index].slot
        if not self.paired or before is None or slot.forward or not before.forward:
            return False
        return before.micro_batch != slot.micro_batch

    def _enter(self, slot: Slot, tail: Parents, earlier: Parents) -> Parents:
        """Return what the first node of a slot waits for: what came last, and its message."""
        start = after(tail)
        tag, peer = self._message(slot, incoming=True)
        message = self.workload.boundary
        if tag < 0 or message is None:
            return start
        # Interleaved schedules expect the message a slot ahead.
        posted = after(earlier) if self._overlaps else start
        name = self._name(slot, f"chunk {slot.chunk}", f"{_direction(slot)} receive")
        node = self.nodes.message(RECEIVE, name, posted, message.size, message.time, peer, tag)
        came = both(start, needing((node,)))
        if self.workload.arrival:
            name = self._name(slot, f"chunk {slot.chunk}", f"{_direction(slot)} gather")
            came = needing((self.nodes.collectives(name, came, self.workload.arrival),))
        return came

    def _leave(self, slot: Slot) -> None:
        """Send the result of a slot to the next stage."""
        tag, peer = self._message(slot, incoming=False)
        message = self.workload.boundary
        if tag < 0 or message is None:
            return
        name = self._name(slot, f"chunk {slot.chunk}", f"{_direction(slot)} send")
        node = self.nodes.message(SEND, name, self.tail, message.size, message.time, peer, tag)
        if not self._overlaps:
            self.tail = needing((node,))

    @property
    def _overlaps(self) -> bool:
        """Whether sends run beside other passes, as `perfmodel.training.scheduled` has them."""
        about = SCHEDULE_FACTS[str(self.workload.strategy["pipeline_schedule"])]
        return self.framework.overlap_pipeline and not about.blocking_sends

    def _finish(self, passes: Sequence[_Pass]) -> None:
        """Reduce what is left, sum up a shared table, update, and let the host have its time."""
        if not (self.framework.overlap_gradient_reduce or self.workload.reductions_per_micro_batch):
            for item in passes:
                if item.slot == self.last[item.slot.chunk]:
                    self._reduce(item)
        ended = both(self.tail, needing(self.reduced))
        for operation in self.stage.sums():
            with_whom = "shared table" if operation.group == "table" else "other copy"
            name = f"gradients of the {with_whom}"
            ended = needing((self.nodes.collectives(name, ended, operation),))
        optimizer = self.stage.optimizer
        node = self.nodes.compute("optimizer", ended, optimizer.time, 0.0, optimizer.traffic)
        if self.workload.step_overhead > 0:
            self.nodes.host("host", needing((node,)), self.workload.step_overhead)


def _direction(slot: Slot) -> str:
    if not slot.sends:
        return "weight gradient"
    return "forward" if slot.forward else "backward"


def _exposed_share(item: ProjectedOperation) -> float:
    share = item.exposed / item.time if item.time > 0 else 0.0
    return share if share >= LEAST_SHARE else 0.0


def by_layers(program: Sequence[ProgramStep]) -> list[ProgramStep]:
    """Join the computations of every phase of a pass into one.

    Communication in its turn follows the computation of its phase; other communication
    runs beside all of the phase in which it hid beside some operations.

    Parameters
    ----------
    program : sequence of ProgramStep
        What does not hide beside its own operations should be in its turn (`in_pieces`):
        beside the whole phase all of it would hide.
    """
    merged: list[ProgramStep] = []
    where: dict[str, int] = {}
    for phase in PHASE_NAMES:
        steps = [step.operation for step in program if step.operation.phase == phase]
        work = [item for item in steps if not item.communicates]
        if work:
            where[phase] = len(merged)
            joined = replace(
                work[0],
                name="layer",
                kind="layer",
                count=1.0,
                time=sum(item.time for item in work),
                exposed=sum(item.exposed for item in work),
                flops=sum(item.flops for item in work),
                traffic=sum(item.traffic for item in work),
            )
            merged.append(ProgramStep(joined))
        # What begins beside the phase comes ahead of what follows it, also on the network.
        merged += [
            step
            for aside in (True, False)
            for step in program
            if step.operation.communicates
            and step.aside == aside
            and (program[step.first] if aside else step).operation.phase == phase
        ]
    for i, step in enumerate(merged):
        if step.aside:
            beside = [where[program[k].operation.phase] for k in (step.first, step.last)]
            merged[i] = replace(step, first=min(beside), last=max(beside))
    return merged
