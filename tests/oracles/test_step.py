"""The closing pass against a plain retelling of it, in loops over random tables.

The oracle follows the docstrings: it has no memo, no stage sums made beforehand, and
takes only single collectives and streams from the kernels.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from perfmodel.base.strategy_fields import MAPPINGS, OFFLOAD, OFFLOAD_TO
from perfmodel.compute.network import network_table
from perfmodel.compute.stream import stream_device
from perfmodel.hwprofiles import load_hardware
from perfmodel.kernels.collective.algorithms import (
    ALL_GATHER,
    ALL_REDUCE,
    POINT_TO_POINT,
    REDUCE_SCATTER,
)
from perfmodel.kernels.collective.times import collective_time
from perfmodel.kernels.pipeline.closed import Ends, ends_wait
from perfmodel.kernels.step import tables as columns
from perfmodel.kernels.step.close import close_strategies, results_in
from perfmodel.kernels.step.overlap import beside_sends, hide
from perfmodel.kernels.step.scheduled import shard_prices
from perfmodel.kernels.step.stages import sum_stages, sum_widths
from perfmodel.kernels.stream import stream_time
from perfmodel.kernels.variables import MEMORY_COMPONENTS, STEP_VARIABLES, TIME_COMPONENTS

NAMES = [item.name for item in STEP_VARIABLES]
EXPOSED = ("tensor_exposed", "context_exposed", "expert_exposed")
COMPUTE = ("forward", "backward", "recompute")
COMPUTE_CLASSES = ("gemm", "attention", "attention_backward", "moe", "recurrence", "sparse")
OUTPUT_PART = 3
EMBEDDING_PART = 2


def ranks_of(fields, axes):
    """Devices of a group, one after the other, innermost axis first."""
    ranks, stride = [0], 1
    for axis in MAPPINGS[fields["mapping"]].split("-"):
        if axis in axes:
            ranks = [rank + i * stride for i in range(fields[axis]) for rank in ranks]
        stride *= fields[axis]
    return ranks


def spacing(ranks, domain):
    """Distance of neighbours; of uneven groups, that which fills a domain as they do."""
    gaps = np.diff(ranks)
    if len(ranks) == 1 or np.all(gaps == gaps[0]):
        return int(gaps[0]) if len(ranks) > 1 else 1
    inner = int(np.argmax(gaps != gaps[0])) + 1
    inside = sum(rank < domain for rank in ranks)
    mean = ranks[inner] // inner
    return max(stride for stride in range(1, mean + 1) if max(domain // stride, 1) == inside)


class Oracle:
    """One strategy on one device, as the docstrings of `perfmodel.kernels.step.close` tell it."""

    def __init__(self, fields, parts, stages, key, settings, device, network, ends):
        self.ends = ends
        self.f, self.parts, self.stages, self.key = fields, parts, stages, key
        self.settings, self.device, self.network = settings, device, network
        self.m = fields["global_batch"] // (fields["data"] * fields["micro_batch"])
        self.replicas = fields["context"] * fields["data"]
        self.dense = ranks_of(fields, ("context", "data"))
        self.stride = spacing(self.dense, settings.domain)
        self.pipeline_stride = ranks_of(fields, ("pipeline",))[-1] // max(fields["pipeline"] - 1, 1)
        spread = fields["expert"] * fields["expert_tensor"]
        self.experts = ranks_of(fields, ("tensor", "context", "data"))[::spread]
        self.expert_stride = spread

    def collective(self, kind, size, members, stride):
        if members <= 1 or size <= 0:
            return 0.0
        return collective_time(kind, float(size), members, stride, self.network)

    def grouped(self, kind, size, ranks, group):
        """Over the whole group, or within HSDP groups and then among their copies."""
        domain = self.settings.domain
        if group == 0 or group >= len(ranks):
            return self.collective(kind, size, len(ranks), spacing(ranks, domain))
        time = self.collective(kind, size, group, spacing(ranks[:group], domain))
        gradients = size / self.settings.reduce_bytes
        return time + (self.copied(gradients, ranks, group) if kind == REDUCE_SCATTER else 0.0)

    def copied(self, parameters, ranks, group):
        """Gradients of so many parameters, among the copies of shards alone."""
        size = parameters * self.settings.copies_bytes
        if group == 0 or group >= len(ranks):
            return 0.0
        copies = ranks[::group]
        span = spacing(copies, self.settings.domain)
        return self.collective(ALL_REDUCE, size / group, len(copies), span)

    @property
    def expert_group(self):
        """Ranks of one expert in a shard set of data ranks; 0 for all there are."""
        devices = self.f["shard_group"] * self.f["tensor"]
        return max(1, devices // self.expert_stride) if devices else 0

    def moved(self, weights, experts):
        """Parameters that several devices hold, and whose gradients they reduce."""
        shared = weights if len(self.dense) > 1 else 0.0
        return shared + (experts if len(self.experts) > 1 else 0.0)

    def dense_and_experts(self, kind, weights, experts, size):
        group = self.f["shard_group"]
        time = self.grouped(kind, weights * size, self.dense, group)
        return time + self.grouped(kind, experts * size, self.experts, self.expert_group)

    @property
    def copies_apart(self):
        """Whether shard sets stay inside a domain that no two copies of a shard share."""
        group = self.f["shard_group"]
        if group == 0 or group >= len(self.dense):
            return False
        domain = self.settings.domain
        inside = group * spacing(self.dense[:group], domain) <= domain
        return inside and spacing(self.dense[::group], domain) >= domain

    def tax(self, experts):
        """Adapters alone: no two members of a group that sends stand in one domain."""
        domain = self.settings.domain
        groups = [self.dense, self.experts] if experts else [self.dense]
        for ranks in groups:
            stride = spacing(ranks, domain)
            outside = len(ranks) * stride > domain and stride >= domain
            if len(ranks) > 1 and not outside:
                return self.settings.tax_inside
        return self.settings.tax_outside

    def hidden(self, time, window, experts, tail=0.0):
        exposed = min(time, max(time - window, tail))
        return exposed + self.tax(experts) * (time - exposed)

    def half_width(self, time, size, exposed=lambda time: time):
        """Half of what separates a slow from a fast communication of some bytes."""
        relative = relative_width(size, self.settings.collective_widths)
        slow, fast = (1 + relative) * time, max(0.0, 1 - relative) * time
        return (exposed(slow) - exposed(fast)) / 2

    def stage_widths(self, counts, shard_width):
        """Half-widths of a stage per micro-batch; classes of compute in quadrature."""
        compute = [self.stage(counts, f"{name}_width") for name in COMPUTE_CLASSES]
        return {
            "compute": np.linalg.norm(compute),
            "stream": self.stage(counts, "stream_width"),
            "collective": self.stage(counts, "collective_width") + shard_width,
        }

    def stage(self, counts, column):
        return sum(n * part[column] for n, part in zip(counts, self.parts, strict=True))

    def stored(self, counts, column):
        """Parameters: one output matrix for all heads, and a tied table once per stage."""
        kept = list(counts)
        kept[OUTPUT_PART] = min(kept[OUTPUT_PART], 1)
        both = kept[OUTPUT_PART] and kept[EMBEDDING_PART] and column == "weights"
        return self.stage(kept, column) - (self.key["shared_table"] if both else 0.0)

    def busy(self, counts):
        return sum(self.stage(counts, column) for column in (*COMPUTE, *EXPOSED, "host"))

    def shard_times(self, counts):
        """ZeRO-3's communication per micro-batch: total, exposed, its half-width.

        Besides, what the first gather of a step shows beyond that, and what of it is forward.
        """
        total = exposed = width = ahead = 0.0
        if self.f["zero"] != 3:
            return total, exposed, width, 0.0, ahead
        s = self.settings
        firsts, lasts = [0.0], [0.0]
        for n, part in zip(counts, self.parts, strict=True):
            weights, experts = part["weights"], part["experts"]
            gather = self.dense_and_experts(ALL_GATHER, weights, experts, s.gather_bytes)
            reduce = self.dense_and_experts(REDUCE_SCATTER, weights, experts, s.reduce_bytes)
            total += n * (2 * gather + reduce)
            size = (weights + experts) * s.gather_bytes
            if not s.overlap_copies:  # behind all of backward
                behind = self.copied(weights, self.dense, self.f["shard_group"])
                behind += self.copied(experts, self.experts, self.expert_group)
                exposed += n * behind
                width += n * self.half_width(behind, size)
                reduce -= behind
            beside = 0.0
            if s.overlap_reduce and s.overlap_copies and self.copies_apart:  # side by side
                beside = self.copied(weights, self.dense, self.f["shard_group"])
                beside += self.copied(experts, self.experts, self.expert_group)
            forward = gather if s.overlap_gather else 0.0
            backward = forward + (reduce if s.overlap_reduce else 0.0)
            backward = max(backward - beside, beside)
            shown = 2 * gather + reduce - 2 * forward - (reduce if s.overlap_reduce else 0.0)
            copies = 2 * s.gather_copy_time + s.reduce_copy_time
            copies *= self.moved(weights, experts)
            total += n * copies
            exposed += n * (shown + copies)
            ahead += n * (gather - forward + s.gather_copy_time * self.moved(weights, experts))
            width += n * self.half_width(shown, size)
            for time, window in ((forward, "forward_window"), (backward, "backward_window")):

                def delays(time, window=part[window], experts=experts):
                    return self.hidden(time, window, experts)

                exposed += n * delays(time)
                ahead += n * delays(time) * (window == "forward_window")
                width += n * self.half_width(time, size, delays)
                saved = time - delays(time)
                if n and window == "forward_window":  # nothing goes ahead of the first gather,
                    firsts.append(saved)
                elif n and time:  # and nothing follows the last reduction of a micro-batch
                    lasts.append(saved * (time - forward) / time)
        return total, exposed + max(lasts), width, max(firsts), ahead

    def result(self):
        f, s, m = self.f, self.settings, self.m
        p, v = f["pipeline"], f["virtual"]
        loads = []
        shown = {}
        for counts, number, copies in self.stages:
            total, exposed, width, first, ahead = self.shard_times(counts)
            busy = self.busy(counts) + exposed
            shown[number] = np.array([ahead, exposed - ahead])
            loads.append((busy, copies, counts, total, exposed, width, first))
        slowest = max(loads, key=lambda load: load[0])
        stage_time, _, critical, gathered, gather_exposed, _, gathered_first = slowest
        self.widths = {"compute": 0.0, "stream": 0.0, "collective": 0.0}
        for _, copies, counts, _, _, shard_width, _ in loads:
            times = m if counts is critical else 0.0
            times += (copies - (counts is critical)) / v
            for name, width in self.stage_widths(counts, shard_width).items():
                self.widths[name] += times * width
        out = dict.fromkeys(NAMES, 0.0)
        for name, column in (
            ("forward_time", "forward"),
            ("backward_time", "backward"),
            ("recompute_time", "recompute"),
            ("tensor_parallel_exposed", "tensor_exposed"),
            ("context_parallel_exposed", "context_exposed"),
            ("expert_parallel_exposed", "expert_exposed"),
            ("tensor_parallel_total", "tensor_total"),
            ("context_parallel_total", "context_total"),
            ("expert_parallel_total", "expert_total"),
        ):
            out[name] = m * self.stage(critical, column)
        if s.pairs:  # the first chunks go forward and the last backward without a partner
            ahead = sum(2 * (p - 1 - r) + (v - 1) * p if v > 1 else p - 1 - r for r in range(p))
            alone = min(1.0, (ahead / p + 1) / (m * v))
            hidden = out["expert_parallel_total"] - out["expert_parallel_exposed"]
            out["expert_parallel_exposed"] += alone * hidden
        if p > 1:
            least = np.min(list(shown.values()), axis=0)
            ends = self.ends + np.concatenate(
                [least / v, shown[0] - least, shown.get(p - 1, least) - least]
            )
            schedule = f["schedule"] == 0
            out["pipeline_bubble"] = ends_wait(schedule, p, v, m, Ends(*ends.tolist()))
        out["host_time"] = m * self.stage(critical, "host") + s.step_overhead
        self.add_sends(out, stage_time)
        weights, experts = self.most_parameters()
        if f["zero"] == 3:
            out["data_parallel_total"] = m * gathered
            out["data_parallel_exposed"] = m * gather_exposed + gathered_first
        else:
            self.add_optimizer(out, weights, experts)
            self.add_data_parallel(out, critical, weights, experts)
        self.add_tied_table(out)
        self.add_scales(out)
        if f["zero"] == 3:
            self.add_optimizer(out, weights, experts)
        out["step_time"] = sum(out[name] for name in TIME_COMPONENTS)
        relative = np.hypot(
            s.step_width, np.linalg.norm([*self.widths.values()]) / out["step_time"]
        )
        out["step_time_high"] = out["step_time"] * np.exp(relative)
        tokens = f["global_batch"] * f["sequence"] * (1 - f["padding"])
        rate = tokens / (out["step_time"] * s.devices)
        out["tokens_per_second_per_device"] = rate
        peak = self.key["peak"]
        out["model_flops_utilization"] = rate * self.key["flops_causal"] / peak
        out["model_flops_utilization_non_causal"] = rate * self.key["flops_non_causal"] / peak
        executed = m * sum(n * self.stage(c, "flops") for c, _, n in self.stages)
        out["hardware_flops_utilization"] = executed / p / (out["step_time"] * peak)
        limit = min(executed / p / peak, out["step_time"])
        out["step_time_low"] = max(out["step_time"] * np.exp(-relative), limit)
        self.add_memory(out)
        return out

    @property
    def crosses(self):
        """Whether some neighbouring stages lie in different scale-up domains."""
        return self.pipeline_stride * self.f["pipeline"] > self.settings.domain

    @property
    def far(self):
        """Distance of two stages, in different domains where any are."""
        return max(self.pipeline_stride, -(-self.pipeline_stride * self.f["pipeline"] // 2))

    @property
    def send(self):
        """Over the slowest boundary: between domains where there is one."""
        return self.collective(POINT_TO_POINT, self.key["boundary"], 2, self.far)

    def add_sends(self, out, stage_time):
        p, v, m = self.f["pipeline"], self.f["virtual"], self.m
        if p == 1:
            return
        send = self.send + self.key["boundary_gather"]
        out["pipeline_total"] = 2 * (p - 1 + m * v) * send

        def delays(send):
            steady = send
            if self.settings.overlap_pipeline and v > 1:
                steady = max(0.0, send - stage_time / (2 * v))
            return 2 * (p - 1) * send + 2 * m * v * steady

        out["pipeline_exposed"] = delays(send)
        self.widths["collective"] += self.half_width(send, self.key["boundary"], delays)

    def most_parameters(self):
        pairs = [
            (self.stored(counts, "weights"), self.stored(counts, "experts"))
            for counts, _, _ in self.stages
        ]
        return max(pairs, key=sum)

    def add_tied_table(self, out):
        """First and last stage add up the gradients of the table that both hold."""
        table, p = self.key["shared_table"], self.f["pipeline"]
        if p > 1 and table:
            size = table * self.settings.gradient_bytes
            time = self.collective(ALL_REDUCE, size, 2, self.far)
            out["data_parallel_exposed"] += time
            out["data_parallel_total"] += time
            self.widths["collective"] += self.half_width(time, size)

    def add_scales(self, out):
        """A stage's ranks reduce the maxima of delayed fp8 after both passes of every chunk."""
        ranks, size = self.f["tensor"] * self.replicas, self.key["scale_bytes"]
        if ranks > 1 and size:
            each = self.collective(ALL_REDUCE, size, ranks, 1)
            for name in ("data_parallel_exposed", "data_parallel_total"):
                out[name] += 2 * self.m * self.f["virtual"] * each

    def add_data_parallel(self, out, critical, weights, experts):
        s, zero, m = self.settings, self.f["zero"], self.m
        reduce = self.dense_and_experts(REDUCE_SCATTER, weights, experts, s.reduce_bytes)
        if zero == 0 or (zero == 1 and s.reduces_whole):  # among all ranks
            dense = self.collective(
                ALL_REDUCE, weights * s.reduce_bytes, len(self.dense), self.stride
            )
            stride = spacing(self.experts, s.domain)
            reduce = dense + self.collective(
                ALL_REDUCE, experts * s.reduce_bytes, len(self.experts), stride
            )
        gather = 0.0
        if zero:
            gather = self.dense_and_experts(ALL_GATHER, weights, experts, s.gather_bytes)
            gather = max(gather, s.owner_call * ((self.f["shard_group"] or self.replicas) - 1))
        times = m if zero == 2 else 1
        per_rank = 0.0 if zero == 2 else s.bucket_bytes_per_rank
        bucket = max(s.bucket_bytes, per_rank * self.replicas)
        tail = min(1.0, bucket / max((weights + experts) * s.gradient_bytes, 1.0))
        update, last_gather = 0.0, tail * gather  # beside which the first chunk is gathered
        chunks = self.f["virtual"]
        if s.overlap_update and zero and self.f["pipeline"] > 1 and chunks > 1:
            update = min(out["optimizer_time"] * (chunks - 1) / chunks, gather / chunks)
            last_gather = gather / chunks - update
            tail = max(tail, 1 / chunks)
        forward = self.stage(critical, "forward_window")
        backward = self.stage(critical, "backward_window")
        copies = times * s.reduce_copy_time + (s.gather_copy_time if zero else 0.0)
        copies *= self.moved(weights, experts)
        out["data_parallel_total"] = times * reduce + gather + copies
        out["data_parallel_exposed"] += copies
        size = (weights + experts) * s.reduce_bytes
        beside = 0.0  # among copies of shards, but for those of the last bucket
        whole = zero == 0 or (zero == 1 and s.reduces_whole)
        if s.overlap_reduce and s.overlap_copies and self.copies_apart and not whole:
            beside = self.copied(weights, self.dense, self.f["shard_group"])
            beside += self.copied(experts, self.experts, self.expert_group)
            beside = (1 - tail) * min(beside, reduce - beside)
        for time, shown, repeats, hides, window, saved, ahead, chunked in (
            (reduce, tail * reduce, times, s.overlap_reduce, backward, beside, 0.0, zero != 2),
            (gather, last_gather, 1, s.overlap_gather, forward, 0.0, update, True),
        ):
            time -= saved
            # Chunks but the last have p passes of a chunk each, the last has its own.
            if chunked and (v := self.f["virtual"]) > 1:
                left = [
                    time / v - window / v,
                    time - window / v * (1 + (v - 1) * self.f["pipeline"]),
                ]
                window = time - max(left)
            window += ahead
            # Sends of a micro-batch through the same adapters: both get half of them, as long
            # as both last. Sends that show lengthen the pass, others slow the collective.
            together, slowed = 0.0, 0.0
            crosses = self.crosses and self.replicas * self.stride > s.domain
            if hides and self.f["pipeline"] > 1 and crosses:
                together = min((1 - tail) * time, self.f["virtual"] * self.send)
                if s.overlap_pipeline and self.f["virtual"] > 1:
                    slowed = min(together, window / 2)
                else:
                    window += together
                    out["pipeline_total"] += repeats * together
                    out["pipeline_exposed"] += repeats * together

            last = shown / (time + slowed) if time else 0.0

            def delays(time, hides=hides, window=window, last=last):
                return self.hidden(time, window, experts, last * time) if hides else time

            out["data_parallel_exposed"] += repeats * delays(time + slowed)
            self.widths["collective"] += repeats * self.half_width(time + slowed, size, delays)

    @property
    def shards(self):
        if self.f["zero"] == 0:
            return 1, 1
        dense = self.f["shard_group"] or self.replicas
        return dense, self.expert_group or len(self.experts)

    def add_optimizer(self, out, weights, experts):
        """Norm, scale and update read own gradients; the update reads and writes the state."""
        s = self.settings
        dense, expert = self.shards
        own = weights / dense + experts / expert
        zeroed = own if self.f["zero"] >= 2 else weights + experts
        read = own * s.gradient_bytes * 3 + own * s.optimizer_bytes
        written = own * s.gradient_bytes + own * s.optimizer_bytes + own * 2.0
        written += zeroed * s.gradient_bytes
        time = stream_time(self.device, read, written, 12.0 * own, 8.0, 0.0)[0]
        out["optimizer_time"] = time
        relative = relative_width(read + written, s.stream_widths)
        self.widths["stream"] += relative * time

    def add_memory(self, out):
        """The worst moment of the worst stage; what lives together is written down per moment."""
        s, f = self.settings, self.f
        axes = [f["tensor"], f["context"], f["data"], f["expert"], *[f["pipeline"]] * 2]
        groups = sum(degree > 1 for degree in axes)
        reserve = s.reserve_bytes + (groups + (groups > 0)) * s.memory.communicator_bytes
        found = [
            moment
            for counts, first, _ in self.stages
            for moment in self.moments(counts, first, reserve)
        ]
        worst = max(found, key=lambda moment: sum(moment.values()))
        out.update(worst, memory_total=sum(worst.values()))
        out["memory_high"] = out["memory_total"] * s.memory.high

    def moments(self, counts, first, reserve):
        s, zero, of = self.settings, self.f["zero"], self.settings.memory
        p, v, m = self.f["pipeline"], self.f["virtual"], self.m
        dense, expert = self.shards
        weights, experts = self.stored(counts, "weights"), self.stored(counts, "experts")
        own, whole = weights / dense + experts / expert, weights + experts
        flight = {
            0: m if p > 1 else 1,
            1: min(m, p - first),
            2: min(m, (2 * (p - first - 1) + (v - 1) * p + 1) / v),
        }[self.f["schedule"]]
        heads = m if self.f["schedule"] == 0 and p > 1 else 1
        size = [part["weights"] + part["experts"] for part in self.parts]
        layer = max(
            (size[i] for i in range(len(counts)) if i < EMBEDDING_PART and counts[i]), default=0
        )
        head = size[OUTPUT_PART] if counts[OUTPUT_PART] else 0
        ends = counts[EMBEDDING_PART] * size[EMBEDDING_PART] + head
        if counts[EMBEDDING_PART] and counts[OUTPUT_PART]:
            ends -= self.key["shared_table"]
        working = max(part["working"] for n, part in zip(counts, self.parts, strict=True) if n)
        state = {
            "memory_parameters": own * of.master_bytes,
            "memory_optimizer": own * (s.optimizer_bytes - of.master_bytes),
            "memory_reserve": reserve,
        }
        if zero < 3 or not of.master_bytes:
            kept = own if zero == 3 else whole
            state["memory_parameters"] += kept * self.key["weight_bytes"]
        shards = (own if zero >= 2 else whole) * s.gradient_bytes
        gradients, late = shards, 0.0
        if of.whole_in_pipeline and p > 1 and zero == 2:
            late = shards * of.own_pool
            gradients = whole * s.reduce_bytes
        if self.replicas > 1 and (zero == 0 or of.beside_with_zero):
            gradients += whole * of.beside_bytes
        there = of.persistent_gradients or m > flight
        # All parts are trained here: the output's gradients come first, the embedding's last.
        widest_part = max(
            part["activations"] for n, part in zip(counts, self.parts, strict=True) if n
        )
        made = [0.0, min(min(head, ends) / whole, 1.0), 1.0]
        if flight <= 1:
            made[2] = max(1.0 - (ends - min(head, ends) + layer) / whole, 0.0)
        made = [1.0] * 3 if there else made
        absent = [(1.0 - share) * gradients * (of.own_pool and zero >= 2) for share in made]
        loss = 1 + s.fragmentation
        away = (whole - own) / loss
        bucket, part = min(s.bucket_bytes, whole * s.gradient_bytes), layer or ends
        part *= s.reduce_bytes + of.unreduced_bytes
        reduced = min(bucket, away * s.optimizer_bytes)
        if zero >= 2:
            reduced = min(part if zero == 3 else max(bucket, part), away * s.gradient_bytes)
        each = min(s.gather_bytes, self.key["weight_bytes"])
        most = (whole if of.master_bytes else whole - own) * each / loss

        def gathered(parts):
            return min(parts * s.gather_bytes, most) if zero == 3 else 0.0

        first_gather = head or 2 * layer
        later = 2 * layer or ends
        if of.ends_in_root:
            first_gather, later = ends + layer, 2 * layer + ends
        received = 2 * m * self.key["boundary"] if of.receives_ahead and p > 1 else 0.0
        received += flight * self.key["boundary"] * of.layer_graphs
        acts, logits = self.stage(counts, "activations"), self.stage(counts, "logits")
        kept_update = of.idle_update_bytes * own
        eager = max(logits + self.stage(counts, "loss") - self.stage(counts, "logits_held"), 0.0)
        pools = [working, eager, eager, flight * acts + working]
        pools = [one * of.layer_graphs for one in pools]
        flat = 0.0
        if of.gathers_flat and zero in (1, 2):
            flat = s.gather_bytes * (weights * (dense > 1) + experts * (expert > 1))
        update = of.update_bytes * own + kept_update + reduced + received
        update += (2 * flat + s.gather_bytes * own) if flat else 0.0
        logits_held = self.stage(counts, "logits_held")
        last = widest_part if flight <= 1 else (flight - 1) * acts + (heads - 1) * logits
        for share, passing, activations, buffers, idle in (
            (
                made[0],
                0.0,
                flight * acts + heads * logits,
                self.stage(counts, "loss") + gathered(first_gather) + received,
                self.stage(counts, "loss_idle") + absent[0] + kept_update + flat + pools[0],
            ),
            (
                made[1],
                head,
                flight * acts + (heads - 1) * logits + logits_held,
                working + gathered(later) + reduced + received,
                absent[1] + kept_update + flat + pools[1],
            ),
            (
                made[2],
                whole,
                last + logits_held,
                working + gathered(later) + reduced + received,
                absent[2] + kept_update + flat + pools[2],
            ),
            (1.0, 0.0, logits_held, update, pools[3]),
        ):
            yield {
                **state,
                "memory_gradients": gradients * share + passing * of.pass_bytes,
                "memory_activations": activations,
                "memory_buffers": buffers,
                "memory_fragmentation": s.fragmentation * (activations + buffers) + idle + late,
            }


def relative_width(size, regimes):
    """Half-width of the regime of a size: small below the first limit, large from the second."""
    above = int(size >= regimes.middle_from) + int(size >= regimes.large_from)
    return (regimes.small, regimes.middle, regimes.large)[above]


def random_case(seed, *, count=60, tied=False, keys=3, settings=None):
    """Random tables for the pass, and the same as plain Python for the oracle."""
    rng = np.random.default_rng(seed)
    apart = ("recurrence_width", "sparse_width", "trained", "trained_experts", "offloadable")
    scale = dict.fromkeys((x for x in columns.PART.names if x not in apart), 1e-3)  # s
    scale |= {name: 1e-4 for name in scale if name.endswith("_width")}  # s
    scale |= {"flops": 1e12, "weights": 1e8, "experts": 1e8}
    scale |= dict.fromkeys(("activations", "working", "logits"), 1e9)
    losses = ("loss", "loss_idle", "logits_held")  # of the output alone
    scale = {name: size for name, size in scale.items() if name not in losses}
    values = rng.uniform(0.1, 1.0, (keys, 4, len(scale))) * np.array([*scale.values()])
    parts = columns.blank_parts(keys, 4)
    for number, name in enumerate(scale):
        parts[name] = values[..., number]
    for number, name in enumerate(losses):
        parts[name][:, OUTPUT_PART] = 10.0 ** (9 - number)
    for name in apart[:2]:
        parts[name] = np.random.default_rng(seed + 1).uniform(1e-5, 1e-4, (keys, 4))
    for exposed in EXPOSED:
        parts[exposed] *= 0.3
    parts["experts"][:, [0, 2, 3]] = 0.0  # one of two layers has experts
    parts["trained"], parts["trained_experts"] = parts["weights"], parts["experts"]
    parts["host"] *= rng.integers(0, 2)  # sometimes the host is fast enough
    pairs = [(1, 1), (2, 1), (4, 1), (4, 2), (8, 3)]
    layer_key, offset, rows, row_key, first, copies = [], [0], [], [], [], []
    for key in range(keys):
        for p, _ in pairs:
            distinct = min(p, 3)
            layer_key.append(key)
            starts = (
                sorted(rng.choice(np.arange(1, p), distinct - 1, replace=False)) if p > 1 else []
            )
            starts = [0, *map(int, starts)]
            for i, start in enumerate(starts):
                counts = [*rng.integers(1, 9, 2).astype(float), 0.0, 0.0]
                counts[EMBEDDING_PART] = float(i == 0)
                counts[OUTPUT_PART] = float(rng.integers(1, 3)) if i == len(starts) - 1 else 0.0
                rows.append(counts)
                row_key.append(key)
                first.append(float(start))
                copies.append(float([*starts[1:], p][i] - start))
            offset.append(len(rows))
    stage_keys = rng.integers(0, len(layer_key), count)
    strategies = []
    for stage_key in stage_keys:
        p, v = pairs[stage_key % len(pairs)]
        tensor, context, data = (int(2 ** rng.integers(0, 4)) for _ in range(3))
        expert = int(2 ** rng.integers(0, 3))
        expert_tensor = int(2 ** rng.integers(0, 2))
        while tensor * context * data % (expert * expert_tensor):
            expert, expert_tensor = max(expert // 2, 1), 1
        micro_batch = int(rng.integers(1, 4))
        zero = int(rng.integers(0, 4))
        group = int(2 ** rng.integers(0, 4))
        strategies.append(
            {
                "stage_key": int(stage_key),
                "tensor": tensor,
                "context": context,
                "pipeline": p,
                "virtual": v,
                "schedule": 2 if v > 1 else int(rng.integers(0, 2)),
                "data": data,
                "zero": zero,
                "shard_group": group if zero and context * data % group == 0 else 0,
                "expert": expert,
                "expert_tensor": expert_tensor,
                "micro_batch": micro_batch,
                "global_batch": data * micro_batch * p * int(rng.integers(1, 9)),
                "sequence": 4096,
                "mapping": int(rng.integers(0, len(MAPPINGS))),
                "padding": 0.125 * (seed % 2),
                **dict.fromkeys(OFFLOAD, 0.0),
                **dict.fromkeys(OFFLOAD_TO.values(), 0),
            }
        )
    scalars: dict[str, np.ndarray] = {
        "shared_table": np.full(keys, 2e7 * tied),
        "boundary": rng.uniform(1e6, 1e8, keys),
        "boundary_gather": np.full(keys, 2e-5 * tied),
        "scale_bytes": np.full(keys, 4096.0 * tied),
        "weight_bytes": rng.choice([2.0, 4.0], keys),
        "flops_causal": rng.uniform(1e9, 1e11, keys),
        "flops_non_causal": rng.uniform(1e9, 1e11, keys),
        "peak": np.full(keys, 1e15),
    }
    made = {
        "devices": 64,
        "domain": 8,
        "gradient_bytes": float(rng.choice([2, 4])),
        "reduce_bytes": float(rng.choice([2, 4])),
        "copies_bytes": 2.0 + seed % 3,
        "gather_bytes": 2.0,
        "gather_copy_time": 1e-12 * (seed % 2),
        "reduce_copy_time": 2e-12 * (seed % 2),
        "optimizer_bytes": 12.0,
        "bucket_bytes": float(rng.uniform(1e8, 5e9)),
        "overlap_reduce": bool(rng.integers(0, 2)),
        "overlap_gather": bool(rng.integers(0, 2)),
        "overlap_copies": bool(rng.integers(0, 2)),
        "overlap_update": bool(seed % 3),
        "owner_call": 1e-4 * (seed % 4 == 0),
        "overlap_pipeline": bool(rng.integers(0, 2)),
        "bucket_bytes_per_rank": float(rng.choice([0.0, 1e8])),
        "reduces_whole": bool(rng.integers(0, 2)),
        "sums_experts": False,
        "pairs": True,
        "tax_inside": 0.1,
        "tax_outside": 0.03,
        "host_bandwidth": 5e10,
        "host_memory_bandwidth": 1e11,
        "nvme_read": 5e9,
        "nvme_write": 3e9,
        "overlap_nvme": False,
        "step_overhead": 0.01,
        "reserve_bytes": 2e9,
        "fragmentation": 0.04,
        "memory": dict(
            master_bytes=4.0 * (seed % 2),
            persistent_gradients=seed % 3 == 0,
            beside_bytes=2.0 * (seed % 4 == 1),
            beside_with_zero=seed % 8 == 1,
            pass_bytes=2.0 * (seed % 5 == 2),
            gathers_flat=seed % 5 < 2,
            whole_in_pipeline=seed % 5 == 1,
            unreduced_bytes=2.0 * (seed % 3 == 1),
            own_pool=seed % 2 == 1,
            receives_ahead=seed % 3 == 2,
            ends_in_root=seed % 4 == 3,
            update_bytes=4.0 * (seed % 3 == 1),
            idle_update_bytes=6.0 * (seed % 4 == 2),
            layer_graphs=seed % 7 == 3,
            communicator_bytes=4e8,
            high=1.1,
        ),
        "stream_widths": (1e6, 1e8, 0.2, 0.15, 0.1),
        "collective_widths": (1e6, 1e8, 0.3, 0.2, 0.15),
        "step_width": 0.05,
    }
    return {
        "parts": parts,
        "layer_key": np.array(layer_key),
        "offset": np.array(offset),
        "rows": np.array(rows),
        "row_key": np.array(row_key),
        "first": np.array(first),
        "copies": np.array(copies),
        "ends": np.random.default_rng(seed + 2).uniform(0.0, 0.1, (len(layer_key), 6)),
        "strategies": strategies,
        "scalars": scalars,
        "settings": columns.settings_of(**{**made, **(settings or {})}),
    }


def closed(case, device, network, *, dtype: Any = np.float64):
    """Run the kernel on a case: variable name to column."""
    sums = columns.blank_stages(len(case["rows"]))
    scalars, settings = case["scalars"], case["settings"]
    key_of = np.zeros(len(case["parts"]), columns.KEY).view(np.recarray)
    for name, values in scalars.items():
        key_of[{"boundary": "boundary_bytes"}.get(name, name)] = values
    key_of.trained_table = key_of.shared_table
    keys = columns.KeyTables(case["parts"], key_of)
    sum_stages(
        case["parts"], case["row_key"], case["rows"], key_of, EMBEDDING_PART, OUTPUT_PART, sums
    )
    sums.first_stage, sums.stages = case["first"], case["copies"]
    sums.pair = np.arange(len(sums))
    of = np.zeros(len(case["layer_key"]), columns.STAGE_KEY).view(np.recarray)
    of.layer_key, of.first, of.behind = case["layer_key"], case["offset"][:-1], case["offset"][1:]
    for name, times in zip(Ends._fields, case["ends"].T, strict=True):
        of[name] = times
    sum_widths(sums, of)
    stages = columns.Stages(of, sums, case["rows"])
    families = np.zeros(len(case["strategies"]), columns.STRATEGY).view(np.recarray)
    for i, row in enumerate(case["strategies"]):  # each a family of its own
        for name in columns.STRATEGY.names:
            called = re.sub("_(parallel|stage|size|length|pipeline)$", "", name)
            if called in row:
                families[name][i] = row[called]
    families.schedule = 1 << families.schedule  # GPIPE, ONE_F_ONE_B, INTERLEAVED
    families.number = families.first = np.arange(families.size)
    families.behind, families.waits = families.first + 1, -1
    batch = np.array([row["global_batch"] for row in case["strategies"]], np.int64)
    out = np.empty((len(columns.ROW), families.size), dtype)
    waits = columns.no_waits()
    layer_key = np.array(case["layer_key"])[families.stage_key]
    shards = shard_prices(families, layer_key, keys, settings, network)
    tables = keys, stages, waits, shards, settings, device, network
    close_strategies(families, batch, *tables, results_in(out))
    return dict(zip(NAMES, out, strict=True))


@pytest.fixture(scope="module", params=["dgx-h100", "mi300x-server"])
def machine(request):
    hardware = load_hardware(request.param)
    return stream_device(hardware), network_table(hardware)


@pytest.mark.parametrize("seed", [*range(8), 24, 34])
def test_the_pass_agrees_with_the_oracle(machine, seed):
    device, network = machine
    case = random_case(seed, tied=bool(seed % 2))
    found = closed(case, device, network)
    for i, fields in enumerate(case["strategies"]):
        stage_key = fields["stage_key"]
        key = case["layer_key"][stage_key]
        rows = range(case["offset"][stage_key], case["offset"][stage_key + 1])
        expected = Oracle(
            fields,
            case["parts"][key],
            [(case["rows"][r], case["first"][r], case["copies"][r]) for r in rows],
            {name: values[key] for name, values in case["scalars"].items()},
            case["settings"],
            device,
            network,
            case["ends"][stage_key],
        ).result()
        wrong = {
            name: (float(found[name][i]), expected[name])
            for name in NAMES
            if found[name][i] != pytest.approx(expected[name], rel=1e-10, abs=1e-15)
        }
        assert not wrong, fields


@pytest.mark.parametrize("seed", range(4))
def test_components_add_up(machine, seed):
    found = closed(random_case(seed, count=300), *machine)
    times = sum(found[name] for name in TIME_COMPONENTS)
    np.testing.assert_allclose(times, found["step_time"], rtol=1e-12)
    memory = sum(found[name] for name in MEMORY_COMPONENTS)
    np.testing.assert_allclose(memory, found["memory_total"], rtol=1e-15)


def test_rows_are_numbered_as_the_variables_are_listed():
    assert columns.ResultRows._fields == tuple(NAMES)
    assert tuple(range(len(NAMES))) == columns.ROW


def test_single_precision_is_close(machine):
    case = random_case(3, count=200)
    double = closed(case, *machine)
    device, network = machine
    single = closed(case, device, network, dtype=np.float32)
    for name in NAMES:
        assert single[name].dtype == np.float32
        np.testing.assert_allclose(single[name], double[name], rtol=1e-6, atol=1e-30)


def test_each_strategy_alone_equals_its_row(machine):
    """The memo of collectives is only a memo: neighbours change nothing."""
    case = random_case(11, count=40)
    together = closed(case, *machine)
    reversed_case = {**case, "strategies": case["strategies"][::-1]}
    backwards = closed(reversed_case, *machine)
    for i, fields in enumerate(case["strategies"]):
        alone = closed({**case, "strategies": [fields]}, *machine)
        for name in NAMES:
            assert alone[name][0] == together[name][i] == backwards[name][-1 - i]


def test_a_missing_precision_makes_everything_nan_and_nothing_else(machine):
    case = random_case(5, count=30)
    case["scalars"]["peak"] = case["scalars"]["peak"].copy()
    case["scalars"]["peak"][1] = np.nan
    found = closed(case, *machine)
    known = closed(random_case(5, count=30), *machine)
    lacking = np.isnan(found["step_time"])
    assert lacking.any()
    assert not lacking.all()
    for name, values in found.items():
        assert np.isnan(values[lacking]).all(), name
        np.testing.assert_array_equal(values[~lacking], known[name][~lacking])


def test_gradient_reduction_hides_behind_backward_only_if_the_framework_says_so(machine):
    small = {"bucket_bytes": 1e6, "bucket_bytes_per_rank": 0.0}
    fields = {"overlap_reduce": True, "overlap_gather": True, **small}
    shown = {"overlap_reduce": False, "overlap_gather": False}
    hidden = closed(random_case(7, settings=fields), *machine)
    exposed = closed(random_case(7, settings=shown), *machine)
    # Without overlap all of it delays the step, sharded parameters (ZeRO-3) included.
    np.testing.assert_allclose(
        exposed["data_parallel_exposed"], exposed["data_parallel_total"], rtol=1e-12
    )
    assert np.all(exposed["step_time"] >= hidden["step_time"] * (1 - 1e-12))
    # With ZeRO-3 another stage may become the slowest; below, both tell of the same one.
    below_three = np.array([s["zero"] for s in random_case(7)["strategies"]]) < 3
    for name, compare in (("total", np.equal), ("exposed", np.greater_equal)):
        pair = (found[f"data_parallel_{name}"][below_three] for found in (exposed, hidden))
        assert np.all(compare(*pair))


@pytest.mark.parametrize("seed", range(3))
def test_exposed_is_never_more_than_total(machine, seed):
    found = closed(random_case(seed, count=300), *machine)
    for axis in ("tensor", "context", "expert", "data"):
        exposed, total = found[f"{axis}_parallel_exposed"], found[f"{axis}_parallel_total"]
        if axis == "data":
            assert np.all(exposed <= total * (1 + 1e-12))
    assert np.all(found["pipeline_exposed"] <= found["pipeline_total"] * (1 + 1e-12))


def test_nothing_to_close_is_no_error(machine):
    assert closed({**random_case(1), "strategies": []}, *machine)["step_time"].size == 0


def test_gradients_and_sends_share_adapters_by_hand():
    # 8 s of gradients and 4 s of sends, both through the same adapters, beside 10 s of compute.
    # Sends that delay compute: the pass lasts 10 + 4 s, and as the sends get half of the
    # adapters, 4 s more; in these 18 s the gradients have 10 + 8 / 2 s of the adapters.
    assert beside_sends(8.0, 10.0, 4.0, True, 0.0) == (4.0, 0.0, 14.0)
    # Sends beside compute take 4 of its 10 s from the gradients, which end after 12 s.
    assert beside_sends(8.0, 10.0, 4.0, False, 0.0) == (0.0, 4.0, 10.0)
    # Never more than half of the pass, and nothing from the last bucket, when no send is left.
    assert beside_sends(20.0, 10.0, 9.0, False, 0.0) == (0.0, 5.0, 10.0)
    assert beside_sends(8.0, 10.0, 9.0, True, 0.25) == (6.0, 0.0, 16.0)
    assert beside_sends(8.0, 10.0, 0.0, True, 0.1) == (0.0, 0.0, 10.0)


@pytest.mark.parametrize("total", [1.0, 5.0, 12.0, 30.0])
@pytest.mark.parametrize("sends", [0.0, 2.0, 9.0, 40.0])
@pytest.mark.parametrize("show", [True, False])
def test_sharing_conserves_the_work_of_the_adapters(total, sends, show):
    # What shows is at least what the adapters cannot have done inside the pass.
    wait, lost, window = beside_sends(total, 10.0, sends, show, 0.0)
    exposed = hide(total + lost, window, 0.0, 0.0)
    assert 0.0 <= exposed <= total
    length = 10.0 + (sends + wait if show else 0.0) + exposed
    alone = 10.0 + (sends if show else 0.0) + hide(total, 10.0, 0.0, 0.0)
    assert length >= total  # the gradients alone
    if show:
        assert length >= max(total + sends, 10.0 + sends)
        assert length <= 10.0 + sends + total
    assert length >= min(alone, total + sends) - 1e-12
