"""The version of perfmodel, read by the build and by ``perfmodel --version``."""

__version__ = "0.1.0"
