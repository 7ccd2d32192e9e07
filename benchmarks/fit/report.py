"""The command line that scripts share which score a kernel model and refit its constants."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def score_and_fit(
    about: str,
    errors: Callable[[Path], Mapping[str, dict[str, Any]]],
    refit: Callable[[Path], Mapping[str, Any]],
    print_fit: Callable[[str, Any], None],
) -> None:
    """Read the arguments, score, fit where asked, and print.

    Parameters
    ----------
    about : str
        The script's docstring.
    errors : callable
        Folder of tables -> error statistics by name (`perfmodel.measured.compare`).
    refit : callable
        Folder of tables -> fit by profile.
    print_fit : callable
        Print the fit of one profile.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with the measured tables")
    parser.add_argument("--fit", action="store_true", help="fit the constants too")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"errors": errors(arguments.folder)}
    if arguments.fit:
        found["fits"] = refit(arguments.folder)
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    scored = {name: row for name, row in found["errors"].items() if row["count"]}
    width = min(78, max(map(len, scored), default=0))
    for name, row in scored.items():
        print(
            f"{name:{width}} {row['count']:5}  median {row['median_absolute_error']:6.1%}  "
            f"mean {row['mean_absolute_error']:6.1%}  p90 {row['p90_absolute_error']:6.1%}  "
            f"bias {row['bias']:+6.1%}"
        )
    for profile, fit in found.get("fits", {}).items():
        print_fit(profile, fit)
