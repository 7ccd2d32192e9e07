"""The notebooks of docs/gallery: run when the site is built, and shown with what came out.

They are Python files (jupytext's ``py:percent``); outputs are nowhere committed. What a notebook
gave is kept in .cache/ until it or any source of perfmodel changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
from jupyter_client.manager import KernelManager
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell

SOURCES = ("perfmodel", "kernels", "hwprofiles", "docs/gallery")
SECONDS = 120  # at most for a notebook, kernels compiled on the way
AT_ONCE = 2
# Drawings with letters as shapes, the same at every build.
SET_UP = """
import matplotlib.pyplot as plt
from matplotlib_inline.backend_inline import set_matplotlib_formats
set_matplotlib_formats("svg", metadata={"Date": None})
plt.rcParams["svg.hashsalt"] = "perfmodel"
"""


def on_files(files: Any, config: Any) -> None:
    root = Path(config.config_file_path).parent
    state = digest(root)
    notebooks = sorted((root / "docs/gallery").glob("*.py"))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as pool:
        os.environ |= {"IPYTHONDIR": folder, "JUPYTER_RUNTIME_DIR": folder}
        made = pool.map(lambda path: kept(path, root / ".cache/notebooks", state), notebooks)
        for path, (text, pictures) in zip(notebooks, made, strict=True):
            files.append(File.generated(config, f"gallery/{path.stem}.md", content=text))
            for name, drawing in pictures.items():
                files.append(File.generated(config, f"gallery/{name}", content=drawing))


def digest(root: Path) -> str:
    """Return a digest of all that a notebook may depend on."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for folder in SOURCES:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".toml", ".json"):
                found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def kept(path: Path, cache: Path, state: str) -> tuple[str, dict[str, str]]:
    """Return a notebook as Markdown with its pictures, from the cache where it is there."""
    place = cache / f"{path.stem}-{state}.json"
    if not place.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob(f"{path.stem}-*.json"):
            old.unlink()
        place.write_text(json.dumps(page(path)), encoding="utf-8")
    text, pictures = json.loads(place.read_text(encoding="utf-8"))
    return text, pictures


def page(path: Path) -> tuple[str, dict[str, str]]:
    """Run a notebook; return it as Markdown, and its pictures by file name."""
    notebook = jupytext.read(path)
    notebook.cells.insert(0, new_code_cell(SET_UP))
    place = {"metadata": {"path": str(path.parent)}}
    # Sockets between processes, no port of the machine.
    manager = KernelManager(transport="ipc", ip=f"{os.environ['JUPYTER_RUNTIME_DIR']}/{path.stem}")
    try:
        NotebookClient(notebook, manager, timeout=SECONDS, resources=place).execute()
    except CellExecutionError as error:
        raise PluginError(f"{path.name}: {error.ename}: {error.evalue}") from None
    finally:
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
    lines: list[str] = []
    pictures: dict[str, str] = {}
    for cell in notebook.cells[1:]:
        if cell.cell_type == "markdown":
            lines += [cell.source, ""]
            continue
        lines += ["```python", cell.source, "```", ""]
        for output in cell.outputs:
            lines += [*shown(output, cell.metadata.get("alt", ""), path.stem, pictures), ""]
    lines.append(
        f"*The notebook is `docs/gallery/{path.name}`: open it with Jupyter and jupytext.*"
    )
    return "\n".join(lines), pictures


def shown(output: Any, alt: str, name: str, pictures: dict[str, str]) -> list[str]:
    """Return an output as lines of a page; its drawing becomes a file."""
    data = output.get("data", {})
    if "image/svg+xml" in data:
        if not alt:
            raise PluginError(f'{name}: a figure without words; write `# %% alt="what it shows"`')
        file = f"{name}-{len(pictures) + 1}.svg"
        pictures[file] = data["image/svg+xml"]
        return [f"![{alt}]({file})"]
    if "text/html" in data:
        table = data["text/html"].replace(' border="1"', "")
        return ['<div class="output">', re.sub(r"\n\s*", "\n", table), "</div>"]
    text = output.get("text", data.get("text/plain", ""))
    if output.get("name") == "stderr":
        raise PluginError(f"{name} wrote to stderr: {text}")
    return ['<div class="output" markdown>', "", "```text", text.rstrip("\n"), "```", "</div>"]
