"""What a PySpark driver needs: the configuration of a session and the shim's jars."""

from __future__ import annotations

from lamina.spark.configure import configure
from lamina.spark.jars import jar_path

__all__ = ["configure", "jar_path"]
