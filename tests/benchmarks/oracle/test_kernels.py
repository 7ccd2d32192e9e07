"""What stands in for the kernels of scans and convolutions."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

NO_ORACLE = "torch is in the extra `oracle` only"


@pytest.fixture
def kernels(script: Any) -> Any:
    return script.load("oracle.kernels")


def test_models_call_the_stand_ins_and_their_own_afterwards(
    kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "transformers.models.any.modeling_any"
    module = ModuleType(name)
    module.mamba_inner_fn = "its own"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    with kernels.stand_ins():
        assert module.mamba_inner_fn is kernels.mamba1
        assert not hasattr(module, "causal_conv1d_fn")
    assert module.mamba_inner_fn == "its own"


@pytest.mark.filterwarnings("default")
def test_a_delta_rule_keeps_what_its_kernel_saves(kernels: Any) -> None:
    torch = pytest.importorskip("torch", reason=NO_ORACLE)
    from torch._subclasses.fake_tensor import FakeTensorMode

    saved = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor.numel() * tensor.element_size())
        return tensor

    with FakeTensorMode(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        keys = torch.empty(1, 32, 2, 16, dtype=torch.bfloat16, requires_grad=True)
        values = torch.empty(1, 32, 4, 8, dtype=torch.bfloat16)
        decay, step = torch.empty(1, 32, 4), torch.empty(1, 32, 4, dtype=torch.bfloat16)
        out, _ = kernels.gated_delta(keys, keys, values, decay, step)
    assert out.shape == values.shape
    # Queries and keys with their norms, values, decay, step, a triangle of 64 per head.
    per_token = 2 * (2 * 2 * 16) + 4 * 2 * 2 + 2 * 4 * 8 + 4 * 4 + 2 * 4 + 2 * 4 * 64
    assert sum(saved) == 32 * per_token
