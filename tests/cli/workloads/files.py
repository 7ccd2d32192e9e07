"""Files that ``perfmodel workload`` writes and shows."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result

from tests.cli.running import run


def workload(*arguments: str) -> Result:
    result = run("workload", *arguments)
    assert result.exit_code == 0, result.stderr
    return result


def shown(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(workload("show", *arguments, "--json").stdout)
    assert found["schema_version"] == "1"
    assert found["workload"] == arguments[0]
    return found
