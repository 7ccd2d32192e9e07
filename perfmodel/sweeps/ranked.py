"""Strategies with their results, best first: a list that shows itself as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# What a table of strategies is read for; everything else is in `Ranked.to_dataframe`.
ALWAYS = ("hardware", "tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size")
RESULTS = ("step_time", "tokens_per_second_per_device", "model_flops_utilization", "memory_total")


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
        from perfmodel.strategy.fields import FIELDS

        frame = self.to_dataframe()
        differ = [
            name
            for name in ("model", "framework", "devices", *(spec.name for spec in FIELDS))
            if name not in ALWAYS and name in frame and frame[name].nunique() > 1
        ]
        names = [name for name in (*ALWAYS, *differ, *RESULTS) if name in frame]
        return frame[names]
