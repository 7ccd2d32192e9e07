"""Compare the model of mixture-of-experts layers with measured ones, and refit its constants.

    python benchmarks/fit/moe.py DATA_FOLDER [--fit] [--json]

DATA_FOLDER holds ``moe.csv`` and ``grouped_gemm_training.csv``. Errors are printed by
device, framework, kernel and precision, and those of the reference rows by regime. With
``--fit``, the constants of every device are fitted to its reference rows (`REFERENCES`) and
printed beside those in use, with the cross-validated error; nothing is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import score_and_fit

from perfmodel.measured.calibrate import calibrate_file
from perfmodel.measured.compare import compare_file

# profile: reference rows. SGLang's CUTLASS rows of H100 time an untuned fallback kernel
# (a quarter of the bandwidth), so the fit leaves them out; the score does not.
REFERENCES = {
    "dgx-a100": 'hardware == "A100_SXM" and framework == "sglang"',
    "dgx-h100": 'hardware == "H100_SXM" and framework == "sglang" '
    'and kernel == "sglang_fused_moe_triton"',
    "dgx-b200": 'hardware == "B200" and framework == "sglang"',
}
ROWS = 800  # that a fit sees


def errors(folder: Path) -> dict[str, dict[str, Any]]:
    """Return error statistics by device, framework, kernel and precision."""
    layers = folder / "moe.csv"
    every = compare_file("moe", layers, by=("hardware", "framework", "kernel", "dtype"))
    names = ("hardware", "framework", "kernel", "dtype")
    groups = {tuple(row.cells[name] for name in names) for row in every.rows}
    found = {}
    for group in sorted(groups):
        where = " and ".join(f'{n} == "{value}"' for n, value in zip(names, group, strict=True))
        found[" ".join(group)] = compare_file("moe", layers, where, by=()).to_json_dict()
    for profile, where in REFERENCES.items():
        for regime in ("small", "middle", "large"):
            rows = compare_file("moe", layers, f'{where} and regime == "{regime}"', by=())
            found[f"reference of {profile}, {regime}"] = rows.to_json_dict()
    training = folder / "grouped_gemm_training.csv"
    found["training products"] = compare_file("moe", training, by=()).to_json_dict()
    return found


def refit(folder: Path) -> dict[str, Any]:
    """Return parameters and errors of a fit of every device."""
    return {
        profile: calibrate_file(
            profile, folder / "moe.csv", kind="moe", where=where, limit=ROWS
        ).to_json_dict()
        for profile, where in REFERENCES.items()
    }


def print_fit(profile: str, fit: dict[str, Any]) -> None:
    """Print errors and constants of one fit."""
    print(f"\n{profile}: {fit['fitted']} rows seen of {fit['count']}")
    for which, by_regime in fit["errors"].items():
        total = by_regime["all"]
        print(f"  {which:16} median {total['median_absolute_error']:6.1%}", end="")
        print(f"  mean {total['mean_absolute_error']:6.1%}  bias {total['bias']:+6.1%}")
    for parameter in fit["parameters"]:
        print(
            f"  {parameter['path']:52} {parameter['before']:10.4g} -> "
            f"{parameter['after']:10.4g} ± {parameter['uncertainty']:.2g}"
        )


if __name__ == "__main__":
    score_and_fit(__doc__ or "", errors, refit, print_fit)
