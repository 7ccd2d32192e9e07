"""Hardware profiles: TOML facts about devices and systems, and their loader.

>>> from perfmodel.hwprofiles import load_hardware
>>> hardware = load_hardware("dgx-h100", {"device.memory.bandwidth": 4.8e12})
>>> hardware.device.peak("bf16")
989400000000000.0
"""

from perfmodel.hwprofiles.hardware import Hardware, hardware_from_dict, known_paths
from perfmodel.hwprofiles.loader import (
    list_aliases,
    list_ambiguous,
    list_hardware,
    load_hardware,
    resolve_name,
)
from perfmodel.hwprofiles.mesh import MeshHardware, mesh_of_nodes, mesh_paths
from perfmodel.hwprofiles.mesh_loader import list_meshes, load_mesh
from perfmodel.hwprofiles.schema import Calibrated, Device, Memory, Network, System

__all__ = [
    "Calibrated",
    "Device",
    "Hardware",
    "Memory",
    "MeshHardware",
    "Network",
    "System",
    "hardware_from_dict",
    "known_paths",
    "list_aliases",
    "list_ambiguous",
    "list_hardware",
    "list_meshes",
    "load_hardware",
    "load_mesh",
    "mesh_of_nodes",
    "mesh_paths",
    "resolve_name",
]
