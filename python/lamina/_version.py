"""The version of the engine and of the shim, which are always released together."""

__version__ = "0.1.0"
PROTOCOL = 1
