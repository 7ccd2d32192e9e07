"""A model and a strategy of ours from AICB's arguments: what its corrected dialect projects."""

from __future__ import annotations

from perfmodel.base.errors import StrategyError
from perfmodel.base.precisions import ALIASES
from perfmodel.model.layers import AttentionSpec, LayerSpec, MlpSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.strategy.enumerate import strategies_from_rows
from perfmodel.strategy.grid import VALID, StrategyGrid
from perfmodel.strategy.rules import STATUS_REASONS
from perfmodel.workloads.twins.aicb.arguments import AicbArguments

DTYPES = ("bfloat16", "float16")


def model_of(arguments: AicbArguments, key_value_heads: int | None = None) -> ModelSpec:
    """Return the model that AICB's arguments describe.

    Parameters
    ----------
    arguments : AicbArguments
        Of a training workload.
    key_value_heads : int, optional
        Heads of keys and values, which AICB cannot state; by default as many as of queries.

    Returns
    -------
    ModelSpec
        Megatron's GPT: layer norms, learned positions, tied embeddings, an MLP with GELU; with
        ``--swiglu`` Llama's: RMS norms, rotary positions, an output matrix of its own and a
        gated MLP. ``--moe_enable`` makes every MLP one of experts; with ``--frame=DeepSeek``
        attention is latent, the first ``--n_dense_layers`` layers are dense and
        ``--n_shared_expert`` experts see every token.

    Raises
    ------
    StrategyError
        Not a training workload, or sizes that do not divide.
    ModelError
        Sizes of no model.
    """
    a = arguments
    if a.generator != "training":
        raise StrategyError("a model is described by the arguments of a training workload only")
    if a.hidden_size % a.attention_heads:
        raise StrategyError(
            f"--hidden_size={a.hidden_size} is no multiple of "
            f"--num_attention_heads={a.attention_heads}"
        )
    latent = a.frame == "DeepSeek"
    gated = a.swiglu or latent
    norm = "rms" if gated else "layer"
    attention = _latent_attention(a) if latent else _attention(a, key_value_heads)
    dense = LayerSpec((attention,), (_dense(a, gated),), norm=norm)
    layers = [dense] * a.num_layers
    if a.moe_enable:
        first = min(a.n_dense_layers, a.num_layers) if latent else 0
        experts = LayerSpec((attention,), (_experts(a, gated),), norm=norm)
        layers = [dense] * first + [experts] * (a.num_layers - first)
    return ModelSpec(
        name=a.model_name or f"{a.frame.lower()}-{a.num_layers}x{a.hidden_size}",
        family="deepseek_v3" if latent else "llama" if gated else "gpt2",
        hidden_size=a.hidden_size,
        vocab_size=a.padded_vocab_size,
        layers=tuple(layers),
        tied_embeddings=not gated,
        position_embedding="rope" if gated else "learned",
        max_positions=a.max_position_embeddings,
        source="AICB arguments",
    )


def strategy_of(arguments: AicbArguments, model: ModelSpec) -> StrategyGrid:
    """Return the strategy that AICB's arguments describe, as a grid of one.

    Data parallelism is what tensor, pipeline and context parallelism leave of the devices;
    ``--use-distributed-optimizer`` is ZeRO-1, and ``--recompute_activations`` Megatron's
    selective recomputation.

    Raises
    ------
    StrategyError
        The strategy is impossible; the message has the reason.
    """
    a = arguments
    if a.dtype not in DTYPES:
        raise StrategyError(f"--dtype={a.dtype}: a projection knows {', '.join(DTYPES)}")
    row = {
        "tensor_parallel": a.tensor_model_parallel_size,
        "sequence_parallel": a.enable_sequence_parallel and a.tensor_model_parallel_size > 1,
        "context_parallel": a.context_parallel_size,
        "pipeline_parallel": a.pipeline_model_parallel,
        "expert_parallel": a.expert_model_parallel_size if a.moe_enable else 1,
        "micro_batch_size": a.micro_batch,
        "global_batch_size": a.global_batch,
        "sequence_length": a.seq_length,
        "recompute": "selective" if a.recompute_activations else "none",
        "precision": ALIASES[a.dtype],
        "zero_stage": 1 if a.use_distributed_optimizer else 0,
    }
    grid = strategies_from_rows(model, a.world_size, [row])
    status = int(grid.status[0])
    if status != VALID:
        raise StrategyError(f"impossible strategy: {STATUS_REASONS[status]}")
    return grid


def _attention(a: AicbArguments, key_value_heads: int | None) -> AttentionSpec:
    """Return multi-head or grouped-query attention."""
    heads = a.attention_heads
    return AttentionSpec("full", heads, key_value_heads or heads, a.hidden_size // heads)


def _latent_attention(a: AicbArguments) -> AttentionSpec:
    """Return DeepSeek's latent attention."""
    return AttentionSpec(
        "mla",
        a.attention_heads,
        a.attention_heads,
        a.qk_nope_dim + a.qk_rope_dim,
        value_head_dim=a.v_head_dim,
        q_lora_rank=a.q_lora_rank,
        kv_lora_rank=a.kv_lora_rank,
        qk_nope_head_dim=a.qk_nope_dim,
        qk_rope_head_dim=a.qk_rope_dim,
    )


def _dense(a: AicbArguments, gated: bool) -> MlpSpec:
    """Return a dense MLP."""
    return MlpSpec(
        "dense",
        intermediate_size=a.feed_forward_size,
        gated=gated,
        activation="silu" if gated else "gelu",
        bias=a.add_bias_linear,
    )


def _experts(a: AicbArguments, gated: bool) -> MlpSpec:
    """Return an MLP of experts."""
    shared = a.n_shared_expert if a.frame == "DeepSeek" else 0
    return MlpSpec(
        "moe",
        gated=gated,
        activation="silu" if gated else "gelu",
        bias=a.add_bias_linear,
        experts=a.num_experts,
        experts_per_token=a.moe_router_topk,
        expert_intermediate_size=a.feed_forward_size,
        shared_intermediate_size=shared * a.feed_forward_size,
    )
