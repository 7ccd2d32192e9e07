"""Bytes that one layer keeps for its backward pass, beside perfmodel's.

torch's min-cut partition (the one of torch.compile) decides what a layer keeps and what
its backward computes again, in bf16 and on tensors without data; or else its autograd does,
which keeps what every operation saves. Softmax attention runs as a kernel that keeps queries,
keys, values, its output and one statistic per query, as FlashAttention does; scans and
convolutions keep what their kernels do (`oracle.kernels`). What layers share (rotations, masks)
and the parameters do not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from oracle import flops, kernels, meta

# In bf16; one device has no communication of its own.
COMPILED, EAGER = "torchtitan", "fsdp"
ATTENTION = "oracle_fused"


class _Reached(Exception):
    """The layer is reached, with what it was given."""


@cache
def register_attention() -> None:
    """Make attention that keeps what FlashAttention keeps known to torch and transformers.

    It is never run: only the shapes of its results and what it keeps are asked for.
    """
    import torch
    from transformers import AttentionInterface, AttentionMaskInterface

    def forward_shapes(query: Any, key: Any, value: Any) -> Any:
        batch, heads, length, _ = query.shape
        statistics = query.new_empty((batch, heads, length), dtype=torch.float32)
        return query.new_empty((batch, length, heads, value.shape[-1])), statistics

    def backward_shapes(gradient: Any, query: Any, key: Any, value: Any, *_: Any) -> Any:
        return tuple(torch.empty_like(tensor) for tensor in (query, key, value))

    library = torch.library.Library("oracle", "DEF")
    three = "(Tensor query, Tensor key, Tensor value"
    library.define(f"attention{three}) -> (Tensor, Tensor)")
    library.define(
        f"attention_backward(Tensor gradient, {three[1:]}, Tensor out, Tensor statistics)"
        " -> (Tensor, Tensor, Tensor)"
    )
    torch.library.register_fake("oracle::attention", forward_shapes, lib=library)
    torch.library.register_fake("oracle::attention_backward", backward_shapes, lib=library)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, *output)

    def backward(context: Any, gradient: Any, _: Any) -> Any:
        return torch.ops.oracle.attention_backward(gradient, *context.saved_tensors)

    torch.library.register_autograd("oracle::attention", backward, setup_context=keep, lib=library)

    def attention(module: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> Any:
        out, _statistics = torch.ops.oracle.attention(query, key, value)
        return out, None

    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, lambda *_, **__: None)
    register_attention.library = library  # type: ignore[attr-defined]  # lives as long as it is asked


@contextmanager
def half_precision() -> Iterator[None]:
    """Make new parameters bf16."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def inputs_of(
    model: Any, layer: Any, sequence_length: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a layer is called with."""
    import torch

    given: list[Any] = []

    def reached(module: Any, positional: Any, named: Any) -> None:
        given.extend((positional, named))
        raise _Reached

    hook = layer.register_forward_pre_hook(reached, with_kwargs=True)
    tokens = torch.zeros((1, sequence_length), dtype=torch.long)
    try:
        model(input_ids=tokens, use_cache=False)
    except _Reached:
        pass
    finally:
        hook.remove()
    if not given:
        raise meta.NoOracleError("the layer is not called by the model's forward")
    return given[0], given[1]


def saved_bytes(config: Any, index: int, sequence_length: int, eager: bool = False) -> int:
    """Return the bytes that layer `index` keeps for one sequence, compiled or as autograd does.

    Raises
    ------
    NoOracleError
        The model cannot be built, or its layer does not run without data.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    register_attention()
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, half_precision(), flops.masks_without_data():
            model = meta.build(config, device="cpu").train()
            model.set_attn_implementation(ATTENTION)
            with suppress(AttributeError, ValueError):
                model.set_experts_implementation("grouped_mm")
            layer = [one for layers in meta.layer_lists(model, config) for one in layers][index]
            with kernels.stand_ins():
                given = inputs_of(model, layer, sequence_length)
                if eager:
                    return _saved_by_autograd(layer, *given)
                # One layer of several: by itself it would not keep what it hands on.
                once, twice = (_kept(*_forward_graph(layer, *given, times)) for times in (1, 2))
    except meta.NoOracleError:
        raise
    except Exception as error:  # whatever a class trips over, it is no oracle then
        raise meta.NoOracleError(meta.first_line(error)) from error
    return twice - once


def _saved_by_autograd(layer: Any, positional: Any, named: Any) -> int:
    """Return the bytes of the memory that what autograd saves lies in."""
    import torch
    from torch.utils import _pytree

    flat, structure = _pytree.tree_flatten((positional, named))
    flat = [item.detach() if isinstance(item, torch.Tensor) else item for item in flat]
    hidden, *shared = (item for item in flat if isinstance(item, torch.Tensor))
    hidden.requires_grad_()
    elsewhere = {_storage(item) for item in (*layer.parameters(), *layer.buffers(), *shared)}
    held: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        if _storage(tensor) not in elsewhere:
            held[_storage(tensor)] = tensor  # kept alive, so that no other memory takes its place
        return tensor

    arguments, keywords = _pytree.tree_unflatten(flat, structure)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layer(*arguments, **keywords)
    return sum(int(tensor.untyped_storage().nbytes()) for tensor in held.values())


def _forward_graph(layer: Any, positional: Any, named: Any, times: int) -> tuple[Any, int]:
    """Return the partitioned forward graph, whose first inputs are so many parameters.

    The layer stands `times` behind each other.
    """
    import torch
    from functorch.compile import (
        aot_function,
        make_boxed_func,
        min_cut_rematerialization_partition,
    )
    from torch.utils import _pytree

    held = dict(layer.named_parameters()) | dict(layer.named_buffers())
    flat, structure = _pytree.tree_flatten((positional, named))
    tensors = [item.detach() for item in flat if isinstance(item, torch.Tensor)]
    tensors[0].requires_grad_()

    def call(weights: Any, hidden: Any, *shared: Any) -> Any:
        state = dict(zip(held, weights, strict=True))
        for _ in range(times):
            waiting = iter((hidden, *shared))
            whole = [next(waiting) if isinstance(item, torch.Tensor) else item for item in flat]
            arguments, keywords = _pytree.tree_unflatten(whole, structure)
            out = torch.func.functional_call(layer, state, arguments, keywords)
            hidden = out[0] if isinstance(out, tuple) else out
        return hidden

    graphs = []

    def compiled(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    partitioned = aot_function(
        call,
        fw_compiler=compiled,
        bw_compiler=compiled,
        partition_fn=min_cut_rematerialization_partition,
    )
    partitioned(list(held.values()), *tensors)
    return graphs[0].graph, len(held)


def _kept(graph: Any, parameters: int) -> int:
    """Return the bytes of what the forward graph hands to backward.

    Several views of one tensor count as what they show of it together.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    shared = inputs[:parameters] + inputs[parameters + 1 :]  # all but the hidden states
    elsewhere = {_storage(value) for value in map(_value, shared) if value is not None}
    (results,) = (node.args[0] for node in graph.nodes if node.op == "output")
    views: dict[int, dict[tuple[int, int], int]] = {}
    largest: dict[int, int] = {}
    for value in map(_value, results[1:]):
        if value is None or _storage(value) in elsewhere:
            continue
        shown = views.setdefault(_storage(value), {})
        shown[value.storage_offset(), value.numel()] = value.numel() * value.element_size()
        largest[_storage(value)] = value.untyped_storage().nbytes()
    return sum(min(sum(shown.values()), largest[key]) for key, shown in views.items())


def _value(node: Any) -> Any:
    """Return the tensor that a node stands for; None for what is no tensor."""
    value = getattr(node, "meta", {}).get("val")
    return value if hasattr(value, "untyped_storage") else None


def _storage(value: Any) -> int:
    """Return which memory a tensor lies in."""
    return int(value.untyped_storage()._cdata)


def modelled_bytes(model: Any, layer: Any, sequence_length: int, eager: bool = False) -> float:
    """Return the activation bytes of a layer as perfmodel has them, on one device."""
    from perfmodel.base.axes import columns_from_rows
    from perfmodel.operations.operations import LAYER_KEY_FIELDS, LayerKeys
    from perfmodel.operations.parts import Part
    from perfmodel.software.framework import load_framework
    from perfmodel.training.memory import part_memory

    columns = columns_from_rows([{"sequence_length": sequence_length}])
    keys = LayerKeys({name: columns[name] for name in LAYER_KEY_FIELDS})
    part = Part("layer", "layer", layer)
    framework = load_framework(EAGER if eager else COMPILED)
    return float(part_memory(model, part, keys, framework).activations[0])


def file_saved(
    path: Path, sequence_length: int, only: int | None, eager: bool = False
) -> dict[str, Any]:
    """Return one file's bytes as a JSON object: a row per kind of layer."""
    from perfmodel.base.errors import PerfModelError
    from perfmodel.model.config import read_config

    try:
        model = read_config(path)
    except PerfModelError as error:
        return {"config": path.name, "note": f"refused: {error}"}
    kinds, index = model.layer_kinds()
    chosen = [index.index(kind) for kind in range(len(kinds))] if only is None else [only]
    rows = []
    for number in chosen:
        row: dict[str, Any] = {"layer": number}
        row["perfmodel"] = modelled_bytes(model, model.layers[number], sequence_length, eager)
        try:
            row["torch"] = saved_bytes(meta.read(path), number, sequence_length, eager)
        except (OSError, ValueError, meta.NoOracleError) as error:
            row["note"] = f"no oracle: {error}"
        rows.append(row)
    return {"config": path.name, "layers": rows}


def lines(entry: dict[str, Any], sequence_length: int) -> Iterator[str]:
    """Yield one file's comparison for people, a line per layer."""
    if "note" in entry:
        yield f"{entry['config']}: {entry['note']}"
        return
    for row in entry["layers"]:
        where = f"{entry['config']}, layer {row['layer']}"
        ours = row["perfmodel"] / sequence_length
        if "torch" not in row:
            yield f"{where}: {ours:,.0f} B per token; {row['note']}"
            continue
        theirs = row["torch"] / sequence_length
        yield f"{where}: {ours:,.0f} B per token, torch {theirs:,.0f} ({ours / theirs - 1:+.2%})"


def run(options: Any) -> int:
    """Compare what layers keep."""
    entries = []
    for path in meta.described(options.paths):
        entry = file_saved(path, options.seq_len, options.layer, options.eager)
        entries.append(entry)
        if not options.json:
            print("\n".join(lines(entry, options.seq_len)), flush=True)
    if options.json:
        print(json.dumps(entries, indent=1))
    return 0
