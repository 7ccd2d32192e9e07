"""Strategies or deployments with their results, best first: a list that shows itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


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
        from perfmodel.store.subject import TRAINING, subjects

        frame = self.to_dataframe()
        subject = next((one for one in subjects() if one.dims[0] in frame), TRAINING)
        fields = (*subject.of_all, *subject.fields) if subject is TRAINING else subject.fields
        differ = [
            name
            for name in fields
            if name not in subject.always and name in frame and frame[name].nunique() > 1
        ]
        shown = (*subject.always, *differ, *subject.results)
        return frame[[name for name in shown if name in frame]]
