"""Measure matrix products inside a training step and alone: a table for `perfmodel compare gemm`.

    python benchmarks/measure/step.py -o step.csv
    python benchmarks/measure/step.py -o step.csv --tokens 2048 --hidden 8192 --layers 2
    perfmodel compare gemm step.csv --by hardware,steady

A decoder (grouped attention, gated MLP, a head, AdamW) is trained on random tokens on one
device, eager. Events stand around each product of its linear layers, forward and backward.
Then each is timed alone in a loop, as gemm.py does. Column ``steady`` tells the two apart:
``yes`` inside the step, ``alone``. Nothing communicates.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import common
import gemm
import state
import timing

STEPS = 10  # timed ones
HEATING = 5.0  # warm-ups of a product that a step is warmed up for


def options() -> Any:
    """Return the parser."""
    made = common.parser(__doc__.split("\n\n")[0])
    made.set_defaults(warmup=1.0)
    made.add_argument("--tokens", type=common.whole, default=8192, help="of the one sequence")
    made.add_argument("--hidden", type=common.whole, default=4096, help="width of a token")
    made.add_argument("--intermediate", type=common.whole, default=14336, help="of the MLP")
    made.add_argument("--kv-heads", type=common.whole, default=8, help="key heads, 128 wide")
    made.add_argument("--layers", type=common.whole, default=4)
    made.add_argument("--vocabulary", type=common.whole, default=32000)
    return made


def weights(arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Return outputs and inputs of the linear layers that differ in size."""
    hidden, inner, shared = arguments.hidden, arguments.intermediate, 128 * arguments.kv_heads
    every = [(hidden, hidden), (shared, hidden), (inner, hidden), (hidden, inner)]
    return list(dict.fromkeys([*every, (arguments.vocabulary, hidden)]))


def products(tokens: int, out: int, inputs: int) -> dict[str, tuple[int, int, int]]:
    """Return m, n, k of the three products of a linear layer, by layout."""
    return {
        "TN": (tokens, out, inputs),
        "NN": (tokens, inputs, out),
        "NT": (out, inputs, tokens),
    }


def shapes(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the products of a step."""
    return [
        {"dtype": "bf16", "batch": 1, "m": m, "n": n, "k": k, "kernel": gemm.LAYOUTS[layout]}
        for out, inputs in weights(arguments)
        for layout, (m, n, k) in products(arguments.tokens, out, inputs).items()
    ]


class Marks:
    """Events around products, by shape."""

    def __init__(self, torch: Any) -> None:
        self._torch, self._events = torch, []

    @contextmanager
    def around(self, layout: str, *sizes: int) -> Iterator[None]:
        """Record an event before and after what runs inside."""
        first, last = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        yield
        last.record()
        self._events.append((layout, sizes, first, last))

    def times(self) -> dict[tuple[Any, ...], list[float]]:
        """Return the times between [s] and forget the events; the device must be idle."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for layout, sizes, first, last in self._events:
            found.setdefault((layout, *sizes), []).append(first.elapsed_time(last) * 1e-3)
        self._events.clear()
        return found


def trainer(torch: Any, arguments: argparse.Namespace, marks: Marks) -> timing.Call:
    """Return one training step."""
    functional, tokens = torch.nn.functional, arguments.tokens

    class Product(torch.autograd.Function):  # type: ignore[misc]
        """X Wᵀ, and the products of its gradients."""

        @staticmethod
        def forward(context: Any, source: Any, weight: Any) -> Any:
            context.save_for_backward(source, weight)
            with marks.around("TN", *products(tokens, *weight.shape)["TN"]):
                return source @ weight.t()

        @staticmethod
        def backward(context: Any, upstream: Any) -> Any:
            source, weight = context.saved_tensors
            sizes = products(tokens, *weight.shape)
            with marks.around("NN", *sizes["NN"]):
                to_source = upstream @ weight
            with marks.around("NT", *sizes["NT"]):
                to_weight = upstream.t() @ source
            return to_source, to_weight

    linear = Product.apply
    parameters: list[Any] = []

    def weight(out: int, inputs: int) -> Any:
        made = torch.randn(out, inputs, device="cuda", dtype=torch.bfloat16) * inputs**-0.5
        parameters.append(made.requires_grad_())
        return made

    hidden, inner, shared = arguments.hidden, arguments.intermediate, 128 * arguments.kv_heads
    attention = [(hidden, hidden), (shared, hidden), (shared, hidden), (hidden, hidden)]
    mlp = [(inner, hidden), (inner, hidden), (hidden, inner)]
    layers = [[weight(*sizes) for sizes in (*attention, *mlp)] for _ in range(arguments.layers)]
    table, head = (weight(arguments.vocabulary, hidden) for _ in range(2))
    optimizer = torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    ids = torch.randint(arguments.vocabulary, (tokens,), device="cuda")

    def heads(of: Any) -> Any:
        return of.view(1, tokens, -1, 128).transpose(1, 2)

    def layer(x: Any, query: Any, key: Any, value: Any, back: Any, *mlp: Any) -> Any:
        gate, up, down = mlp
        seen = functional.rms_norm(x, (hidden,))
        mixed = functional.scaled_dot_product_attention(
            *(heads(linear(seen, each)) for each in (query, key, value)),
            is_causal=True,
            enable_gqa=hidden != shared,
        )
        x = x + linear(mixed.transpose(1, 2).reshape(tokens, hidden), back)
        seen = functional.rms_norm(x, (hidden,))
        return x + linear(functional.silu(linear(seen, gate)) * linear(seen, up), down)

    def step() -> None:
        x = functional.embedding(ids, table)
        for each in layers:
            x = layer(x, *each)
        functional.cross_entropy(linear(x, head), ids).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def in_step(
    torch: Any, arguments: argparse.Namespace, watch: state.Monitor
) -> dict[tuple[Any, ...], list[float]]:
    """Return the times of every product inside a step [s]; print that of the step."""
    marks = Marks(torch)
    step = trainer(torch, arguments, marks)
    begin = time.perf_counter()
    while time.perf_counter() - begin < HEATING * arguments.warmup:
        step()
        torch.cuda.synchronize()
    marks.times()
    whole = Marks(torch)
    with watch, whole.around("step"):
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    taken = whole.times()[("step",)][0] / STEPS
    print(f"a step: {taken * 1e3:.4g} ms, {watch.state()}", file=sys.stderr)
    return marks.times()


def main(words: Sequence[str] | None = None) -> int:
    """Measure what the command line names."""
    arguments = options().parse_args(words)
    if arguments.list or not arguments.output:
        return common.run(arguments, shapes(arguments), gemm.COLUMNS, gemm.prepare)
    torch = common.import_torch(arguments.device)
    torch.manual_seed(arguments.seed)
    columns = [*gemm.COLUMNS, *common.MEASURED, *state.STATE, *common.MACHINE]
    writer = common.Writer(arguments.output, columns, arguments.append)
    facts, watch = common.machine(torch, arguments), state.Monitor(arguments.device)
    for (layout, m, n, k), times in in_step(torch, arguments, watch).items():
        writer.row(
            {
                **facts,
                **{"framework": gemm.FRAMEWORK, "dtype": "bf16", "batch": 1},
                **{"m": m, "n": n, "k": k, "kernel": gemm.LAYOUTS[layout]},
                **common.times_of(
                    timing.Timing(statistics.median(times), min(times), max(times), len(times))
                ),
                **{"timer": "events", "steady": "yes", **watch.state()},
            }
        )
    return common.run(
        argparse.Namespace(**{**vars(arguments), "append": True}),
        shapes(arguments),
        gemm.COLUMNS,
        gemm.prepare,
    )


if __name__ == "__main__":
    sys.exit(main())
