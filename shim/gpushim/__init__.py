"""NVIDIA GPUs for containers: an OCI runtime shim."""

__version__ = "0.1.0"
