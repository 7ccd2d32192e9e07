"""Strategies or deployments with their results, best first: a list that shows itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# What a table of strategies is read for; everything else is in `Ranked.to_dataframe`.
ALWAYS: tuple[str, ...] = (
    "hardware",
    "tensor_parallel",
    "pipeline_parallel",
    "data_parallel",
    "micro_batch_size",
)
RESULTS: tuple[str, ...] = (
    "step_time",
    "tokens_per_second_per_device",
    "model_flops_utilization",
    "memory_total",
)
SERVED_ALWAYS: tuple[str, ...] = ("hardware", "engine", "tensor_parallel", "workers", "devices")
SERVED_RESULTS: tuple[str, ...] = (
    "time_to_first_token_mean",
    "time_per_output_token_mean",
    "tokens_per_second_per_user",
    "tokens_per_second_per_device",
)
WAFER_ALWAYS: tuple[str, ...] = ("hardware", "phase", "grid_rows", "grid_columns")
WAFER_RESULTS: tuple[str, ...] = (
    "latency",
    "tokens_per_second",
    "network_time",
    "bottleneck",
    "sram_used",
)


class Ranked(list[dict[str, Any]]):
    """Strategies as dictionaries of plain Python values in SI units, best first.

    Its text, also as HTML in a notebook, shows the fields in which the strategies differ and
    their main results.
    """

    def __repr__(self) -> str:
        return self._shown().to_string() if self else "no strategies"

    def _repr_html_(self) -> str:
        html: str = self._shown().to_html()
        return html

    def to_dataframe(self) -> pd.DataFrame:
        """Return all columns as a `pandas.DataFrame`, numbered from 1."""
        import pandas as pd

        return pd.DataFrame(list(self), index=range(1, len(self) + 1))

    def _shown(self) -> pd.DataFrame:
        from perfmodel.sweeps.subject import SERVING, TRAINING, WAFER

        frame = self.to_dataframe()
        served = "deployment" in frame
        always, results = (SERVED_ALWAYS, SERVED_RESULTS) if served else (ALWAYS, RESULTS)
        fields = SERVING.fields if served else (*TRAINING.of_all, *TRAINING.fields)
        if "grid_rows" in frame:
            always, results, fields = WAFER_ALWAYS, WAFER_RESULTS, WAFER.fields
        differ = [
            name
            for name in fields
            if name not in always and name in frame and frame[name].nunique() > 1
        ]
        return frame[[name for name in (*always, *differ, *results) if name in frame]]
