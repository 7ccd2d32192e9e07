"""Pages that lie beside docs/: the README is the home of the site, not copied but read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

PAGES = {
    "README.md": ("index.md", "perfmodel"),
    "CHANGELOG.md": ("changelog.md", ""),
    "CONTRIBUTING.md": ("contributing.md", ""),
    "SECURITY.md": ("security.md", ""),
}


def on_files(files: Any, config: Any) -> None:
    root = Path(config.config_file_path).parent
    for name, (page, title) in PAGES.items():
        if (root / name).is_file():
            head = f"---\ntitle: {title}\n---\n\n" if title else ""
            text = head + (root / name).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=text))
