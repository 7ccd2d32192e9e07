"""Networks that the tests load and draw."""

from __future__ import annotations

from perfmodel.workloads.links.topology import Dimension, Topology

GB = 1e9
MESH = Topology((Dimension("mesh", (4, 4), 200 * GB, 1e-6),))
RING = Topology((Dimension("ring", (16,), 100 * GB, 1e-6),))
NODE = Topology((Dimension("switch", (8,), 450 * GB, 0.3e-6, name="nvlink"),))
RAILS = Topology((*NODE.dimensions, Dimension("rail", (2,), 50 * GB, 1e-6)))

DRAWN = {
    "mesh": MESH,
    "ring": RING,
    "node": NODE,
    "rails": RAILS,
    "torus": Topology((Dimension("torus", (3, 3, 3), 1.0, 0.0),)),
    "rings": Topology((Dimension("ring", (4,), 1.0, 0.0),) * 4),
    "tree": Topology(
        (Dimension("fully-connected", (8,), 1.0, 0.0), Dimension("fat-tree", (4,), 1.0, 0.0))
    ),
    "pods": Topology(
        (
            Dimension("switch", (8,), 1.0, 0.0),
            Dimension("rail", (4,), 1.0, 0.0),
            Dimension("fat-tree", (2,), 1.0, 0.0, 2.0),
        )
    ),
    "one": Topology((Dimension("switch", (1,), 1.0, 0.0),)),
    "largest": Topology((Dimension("switch", (256,), 1.0, 0.0),)),
}
