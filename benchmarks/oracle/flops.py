"""FLOP of forward and backward as torch's FlopCounterMode counts them, beside perfmodel's.

Attention runs eagerly, so that torch multiplies the full square of every layer whatever its
window: perfmodel is asked the same. What torch counts by another rule is named and taken out:

- the chunked delta rule of transformers solves its triangle by loops over rows, which are no
  products; kernels multiply, 2 C (d_k + d_v) per head and token;
- Mamba-2 there multiplies C by B once per head, where one product per group does, and adds up
  states of chunks by a product over all pairs of them;
- the scan of Mamba-1 is elementwise, which torch does not count;
- scores of index heads are summed up by a product, where kernels add them up on the way;
- a causal convolution is padded on both sides: S + K - 1 places are counted for S tokens, and
  backward is counted as if every channel met every other, so it is left out;
- some classes run every expert on every token and add up what was chosen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oracle import meta

CONVOLUTION = "aten.convolution"
TOLERANCE = 0.01
CHOOSING = "sums over index heads"


@dataclass(frozen=True)
class Flops:
    """FLOP of one sequence as torch counts them.

    Attributes
    ----------
    products, backward : int
        Matrix products of forward, and of backward.
    convolutions : int
        Convolutions of forward.
    idle_experts : int
        Products of forward with experts that a token had not chosen.
    """

    products: int
    backward: int
    convolutions: int
    idle_experts: int


@contextmanager
def masks_without_data() -> Iterator[None]:
    """Let attention masks be made without looking into positions, which hold no data."""
    from transformers import masking_utils

    original = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda positions: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = original


def prepared(config: Any) -> Any:
    """Return the model on the meta device, set to run what the counter understands.

    Raises
    ------
    NoOracleError
        transformers cannot build it.
    """
    model = meta.build(config)
    model.set_attn_implementation("eager")
    # Otherwise an expert runs on the tokens that chose it, which nobody knows here.
    with suppress(AttributeError, ValueError):
        model.set_experts_implementation("batched_mm")
    return model.train()


def counted(config: Any, sequence_length: int) -> Flops:
    """Return the FLOP of one sequence, forward and backward.

    Raises
    ------
    NoOracleError
        The model cannot be built, or does not run without data.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = prepared(config)
    tokens = torch.zeros((1, sequence_length), dtype=torch.long, device="meta")
    given = {"input_ids": tokens, "use_cache": False}
    if getattr(model.config, "is_encoder_decoder", False):
        given["decoder_input_ids"] = tokens
    try:
        with masks_without_data(), FlopCounterMode(display=False) as forward:
            logits = model(**given).logits
        with FlopCounterMode(display=False) as backward:
            logits.sum().backward()
    except Exception as error:  # whatever a class trips over, it is no oracle then
        raise meta.NoOracleError(meta.first_line(error)) from error
    table = forward.get_flop_counts()
    kinds = [_by_kind(counter.get_flop_counts()["Global"]) for counter in (forward, backward)]
    (products, convolutions), (products_behind, _) = kinds
    idle = _idle_experts(model, config, table, sequence_length)
    return Flops(products, products_behind, convolutions, idle)


def _by_kind(counts: dict[Any, int]) -> tuple[int, int]:
    """Return products and convolutions."""
    convolutions = sum(flops for kind, flops in counts.items() if CONVOLUTION in str(kind))
    return sum(counts.values()) - convolutions, convolutions


def _idle_experts(model: Any, config: Any, table: dict[str, Any], sequence_length: int) -> int:
    """Return what banks of experts multiplied beyond the experts that a token chose."""
    idle = 0
    for path, experts, own in meta.expert_weights([model]):
        chosen = meta.chosen_experts(config, 0)
        done = sum(table.get(f"{type(model).__name__}.{path}", {}).values())
        if chosen is None or not done:
            continue
        matrices = sum(weight.numel() for weight in own if weight.ndim == 3)
        idle += done - 2 * matrices // experts * chosen * sequence_length
    return idle


def without_windows(model: Any) -> Any:
    """Return a `ModelSpec` whose attention sees every key, its MTP modules left out."""
    layers = []
    for layer in model.layers:
        mixers = tuple(
            replace(mixer, kind="full", window=0) if getattr(mixer, "window", 0) else mixer
            for mixer in layer.mixers
        )
        layers.append(replace(layer, mixers=mixers))
    return replace(model, layers=tuple(layers), mtp_layers=())


def named_differences(model: Any, sequence_length: int) -> dict[str, int]:
    """Return what torch counts beyond perfmodel in forward, per sequence, by its name."""
    found: dict[str, int] = {}

    def add(name: str, per_token: int) -> None:
        found[name] = found.get(name, 0) + per_token * sequence_length

    for layer in model.layers:
        for mixer in layer.recurrences:
            if mixer.kind in ("gated_delta", "kimi_delta"):
                solved = 2 * mixer.chunk * (mixer.key_dim + mixer.value_dim)
                add("triangular solve", -mixer.heads * solved)
            if mixer.kind == "mamba2":
                repeated = mixer.heads - mixer.key_heads
                add("C B per head", 2 * repeated * mixer.chunk * mixer.key_dim)
                chunks = -(-sequence_length // mixer.chunk)
                state = mixer.heads * mixer.key_dim * mixer.value_dim
                passed = 2 * (chunks + 1) ** 2 * state
                found["states between chunks"] = found.get("states between chunks", 0) + passed
            if mixer.kind == "mamba1":
                add("elementwise scan", -9 * mixer.heads * mixer.key_dim)
        for mixer in layer.attentions:
            indexer = mixer.indexer
            if indexer is None or indexer.shared or mixer.compression or not indexer.head_weights:
                continue
            add(CHOOSING, 2 * indexer.heads * sequence_length)
    return found


def padding_of_convolutions(model: Any, sequence_length: int, counted_by_torch: int) -> int:
    """Return what torch counts at the ends that causal convolutions pad and cut off again.

    0 where it counts anything but S + K - 1 places of each, so that a difference shows.
    """
    taps = [
        (piece.inputs, piece.outputs)
        for layer in model.layers
        for _, piece in layer.pieces(model.hidden_size)
        if piece.kind == "convolution"
    ]
    padded = sum(2 * kernel * width * (sequence_length + kernel - 1) for kernel, width in taps)
    ends = sum(2 * kernel * width * (kernel - 1) for kernel, width in taps)
    return ends if counted_by_torch == padded else 0


def compared(model: Any, config: Any, sequence_length: int) -> dict[str, Any]:
    """Return perfmodel's and torch's FLOP of one sequence, and by how much they differ.

    Raises
    ------
    NoOracleError
        torch has no count.
    """
    from perfmodel.training.flops import model_flops_per_token

    torch = counted(config, sequence_length)
    full = without_windows(model)

    def ours(backward: bool) -> float:
        per_token = model_flops_per_token(full, sequence_length, causal=False, backward=backward)
        return float(per_token) * sequence_length

    named = named_differences(model, sequence_length)
    named["experts not chosen"] = torch.idle_experts
    named["ends of convolutions"] = padding_of_convolutions(
        model, sequence_length, torch.convolutions
    )
    forward = torch.products + torch.convolutions - sum(named.values())
    # What is named happens twice more in backward, where convolutions are counted wrongly. What
    # chooses keys has no gradient.
    behind = forward - torch.products + named.get(CHOOSING, 0)
    backward = 2 * behind + torch.backward
    return {
        "forward": {"perfmodel": ours(backward=False), "torch": forward},
        "forward_and_backward": {"perfmodel": ours(backward=True), "torch": forward + backward},
        "named_differences": {name: flops for name, flops in named.items() if flops},
    }


def line(entry: dict[str, Any]) -> str:
    """Return one file's comparison for people."""
    if "note" in entry:
        return f"{entry['config']}: {entry['note']}"
    parts = []
    for what in ("forward", "forward_and_backward"):
        ours, theirs = entry[what]["perfmodel"], entry[what]["torch"]
        words = "equal" if ours == theirs else f"{ours / theirs - 1:+.4%} of {theirs:,}"
        parts.append(f"{what.replace('_', ' ')} {words}")
    named = [f"{name} {flops:+,}" for name, flops in entry["named_differences"].items()]
    return f"{entry['config']}: {', '.join(parts)}" + (f" ({'; '.join(named)})" if named else "")


def file_flops(path: Path, sequence_length: int) -> dict[str, Any]:
    """Return one file's comparison as a JSON object, or why there is none."""
    from perfmodel.base.errors import ModelError
    from perfmodel.model.config import read_config

    try:
        model = read_config(path)
        found = compared(model, meta.read(path), sequence_length)
    except ModelError as error:
        return {"config": path.name, "note": f"refused: {error}"}
    except (OSError, ValueError, meta.NoOracleError) as error:
        return {"config": path.name, "note": f"no oracle: {error}"}
    return {"config": path.name, **found}


def run(options: Any) -> int:
    """Compare the FLOP of files; exit code 1 where they differ by more than 1 %."""
    worst = 0.0
    entries = []
    for path in meta.described(options.paths):
        entry = file_flops(path, options.seq_len)
        entries.append(entry)
        if not options.json:
            print(line(entry), flush=True)
        for what in ("forward", "forward_and_backward"):
            if what in entry:
                worst = max(worst, abs(entry[what]["perfmodel"] / entry[what]["torch"] - 1))
    if options.json:
        print(json.dumps(entries, indent=1))
    return int(worst > TOLERANCE)
