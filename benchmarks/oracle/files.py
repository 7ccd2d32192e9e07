"""Real ``config.json`` files, read by perfmodel and by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from oracle import compare, meta


def file_verdict(path: Path) -> compare.Verdict:
    """Return how a file is read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        config = meta.configuration(document)
    except (OSError, ValueError, meta.NoOracleError) as error:
        return compare.Verdict(path.name, "no oracle", str(error))
    return compare.verdict(path.name, document, config)


def run(options: Any) -> int:
    """Compare files; exit code 1 where a count is wrong."""
    return compare.report(map(file_verdict, meta.described(options.paths)), options.json)
