"""Graphs of operations as GraphML, which networkx, yEd and Gephi read.

Source: Brandes et al., "GraphML Progress Report", 2001; http://graphml.graphdrawing.org.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from perfmodel.base.files import atomic_path

TYPES = {str: "string", int: "long", float: "double"}


def write_graphml(
    path: str | os.PathLike[str],
    vertices: Iterable[Mapping[str, str | int | float]],
    edges: Iterable[tuple[int, int]],
    keys: Mapping[str, type],
) -> tuple[int, int]:
    """Write a directed graph, completely or not at all.

    Parameters
    ----------
    path : str or path
    vertices : iterable of mapping of str to str, int or float
        Values of each vertex; vertices count from 0.
    edges : iterable of (int, int)
        From and to.
    keys : mapping of str to type
        Name of each value -> `str`, `int` or `float`.

    Returns
    -------
    (int, int)
        Vertices and edges written.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    counts = [0, 0]
    with atomic_path(Path(path)) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('<?xml version="1.0" encoding="UTF-8"?>\n')
        file.write('<graphml xmlns="http://graphml.graphdrawing.org/xmlns">\n')
        for name, kind in keys.items():
            file.write(
                f'<key id={quoteattr(name)} for="node" attr.name={quoteattr(name)} '
                f'attr.type="{TYPES[kind]}"/>\n'
            )
        file.write('<graph edgedefault="directed">\n')
        for number, values in enumerate(vertices):
            data = "".join(
                f"<data key={quoteattr(name)}>{escape(str(value))}</data>"
                for name, value in values.items()
            )
            file.write(f'<node id="n{number}">{data}</node>\n')
            counts[0] += 1
        for before, after in edges:
            file.write(f'<edge source="n{before}" target="n{after}"/>\n')
            counts[1] += 1
        file.write("</graph>\n</graphml>\n")
    return counts[0], counts[1]
