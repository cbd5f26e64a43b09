"""`lamina.configure`: makes a PySpark session keep the state of its streaming queries in lamina."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from lamina.errors import EngineError, SettingsError
from lamina.settings import Settings, as_text, warnings_for
from lamina.spark import launch
from lamina.spark.jars import jar_path, spark_home
from lamina.spark.java import java_problem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER_KEY = "spark.sql.streaming.stateStore.providerClass"
PROVIDER = "org.apache.spark.sql.lamina.LaminaStateStoreProvider"
EXTENSIONS_KEY = "spark.sql.extensions"
EXTENSION = "org.apache.spark.sql.lamina.LaminaExtensions"
PLUGINS_KEY = "spark.plugins"
PLUGIN = "org.apache.spark.sql.lamina.LaminaPlugin"
FILE_MANAGER_KEY = "spark.sql.streaming.checkpointFileManagerClass"
FILE_MANAGER = "org.apache.spark.sql.lamina.LaminaCheckpointFileManager"
CHECKPOINT_FORMAT_KEY = "spark.sql.streaming.stateStore.checkpointFormatVersion"

_ENTRIES = {EXTENSIONS_KEY: EXTENSION, PLUGINS_KEY: PLUGIN}
"""What lists are to hold."""

_KEYS: dict[str, str] = {field.name: field.metadata["key"].full_name for field in fields(Settings)}


def configure(
    builder: SparkSession.Builder, backend: str = "heap", changelog: bool = False, **settings: object
) -> SparkSession.Builder:
    """Sets what a session needs so that its streaming queries keep their state in lamina.

    Sets the provider, checkpoint format 2 and the given settings, adds the shim's jar for the installed Spark to
    `spark.jars`, to `spark.sql.extensions` the extension that `transformWithState` needs, and to `spark.plugins` what
    starts the engines with the executors; jars, extensions and plugins that the builder, `spark-defaults.conf` or
    `PYSPARK_SUBMIT_ARGS` set stay. The engine runs with the Python that is chosen for Spark's workers; where none is
    and the master is local, with that of this program: set another master before.
    With `.remote("local[...]")` it sets up the Spark Connect server that the builder starts, to which PySpark gives no
    plugins.
    Needs no network. Call it before the first session of the process, unless the jar is already loaded (as after
    `spark-submit --packages`).

    Args:
        builder: `SparkSession.builder`, or one with options set.
        backend: what versions stand on, `heap` or `rocksdb`.
        changelog: whether small commits of all stores of an executor become durable together, in one log object, for
            which a batch waits and no task does (`durability.level` `executor`).
        settings: further settings of lamina in snake case, as `compaction_mode="full"` for `compaction.mode`.

    Returns:
        The same builder.

    Raises:
        SettingsError: an unknown or ill-typed setting, or a session that can no longer load the jar.
        VersionError: `version.spark`, where no jar fits the installed Spark.
        EngineError: `engine.dependency`, where there is no Java that fits.
    """
    options = _options(builder)
    remote = str(options.get("spark.remote", os.environ.get("SPARK_REMOTE", "local")))
    if remote.startswith("sc://"):
        raise SettingsError(
            "settings.invalid",
            f"The Spark Connect server at {remote} runs already, and no client can load a state store provider into "
            "it: start the server with --packages and --properties-file instead.",
        )
    if changelog:
        settings = {"changelog_enabled": True, "durability_level": "executor", **settings}
    wanted = _full_keys({"backend": backend, **settings})
    Settings.parse(wanted)
    if settings.get("durability_level") == "executor":
        before = _set_before(options, FILE_MANAGER_KEY)
        if before not in (None, FILE_MANAGER):
            wanted.setdefault(_KEYS["changelog_checkpoint_file_manager_class"], before)
        builder.config(FILE_MANAGER_KEY, FILE_MANAGER)
    if _jvm_runs():
        _require_loaded_provider()
        for key, entry in _ENTRIES.items():
            builder.config(key, launch.merged(_set_before(options, key), entry))
    else:
        problem = java_problem()
        if problem is not None:
            raise EngineError("engine.dependency", problem)
        _add(builder, options, "spark.jars", jar_path())
        for key, entry in _ENTRIES.items():
            _add(builder, options, key, entry)
    python = _python_of_engine(options)
    if python is not None:
        wanted.setdefault(_KEYS["engine_python"], python)
    for text in warnings_for({str(key): str(value) for key, value in options.items()}):
        warnings.warn(text, stacklevel=2)
    return builder.config(map={PROVIDER_KEY: PROVIDER, CHECKPOINT_FORMAT_KEY: "2", **wanted})


def _options(builder: SparkSession.Builder) -> dict[str, Any]:
    return dict(getattr(builder, "_options", {}))


def _full_keys(settings: dict[str, object]) -> dict[str, str]:
    full: dict[str, str] = {}
    for name, value in settings.items():
        if name not in _KEYS:
            near = difflib.get_close_matches(name, _KEYS, n=1, cutoff=0.0)[0]
            raise SettingsError("settings.unknown", f"{name} is not a setting of lamina. The nearest one is {near}.")
        full[_KEYS[name]] = as_text(value)
    return full


def _add(builder: SparkSession.Builder, options: dict[str, Any], key: str, entry: str) -> None:
    """Adds `entry` to a list that may be set in three places, of which Spark would use one."""
    environment = launch.jvm_environment()
    in_arguments = launch.add_to_submit_args(key, entry, environment)
    if key in options or not in_arguments:
        before = options[key] if key in options else launch.defaults(spark_home(), environment).get(key)
        builder.config(key, launch.merged(before, entry))


def _python_of_engine(options: dict[str, Any]) -> str | None:
    """What the shim does not see by itself.

    PySpark tells executors the driver's `PYSPARK_PYTHON` with each function, and their environment has it only where
    `spark.executorEnv` says so. Spark's own default, the `python3` on PATH, is another one where a virtual environment
    is not activated.
    """
    chosen = launch.jvm_environment().get("PYSPARK_PYTHON")
    if str(_set_before(options, "spark.master") or "local").startswith("local"):
        return None if chosen or _jvm_runs() or _set_before(options, "spark.pyspark.python") else sys.executable
    before = any(_set_before(options, key) for key in ("spark.pyspark.python", "spark.executorEnv.PYSPARK_PYTHON"))
    return None if before else chosen


def _set_before(options: dict[str, Any], key: str) -> str | None:
    """What a key is set to wherever the session takes it from: the builder first."""
    return options.get(key) or (_jvm_conf(key) if _jvm_runs() else _before_the_jvm().get(key))


def _before_the_jvm() -> dict[str, str]:
    """What a JVM that is started is set to: by the file of defaults, and by the arguments before that."""
    environment = launch.jvm_environment()
    return {**launch.defaults(spark_home(), environment), **launch.submit_conf(environment)}


def _jvm_runs() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


def _jvm_conf(key: str) -> str | None:
    """What `spark-submit` set before this program began."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    value: str | None = SparkConf().get(key, None)
    return value


def _require_loaded_provider() -> None:
    """A JVM that already runs loads no further jars on the driver, so the provider has to be there."""
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    assert jvm is not None
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        jvm.java.lang.Class.forName(PROVIDER, False, loader)
    except Py4JJavaError:
        raise SettingsError(
            "settings.conflict",
            "Spark's JVM already runs without lamina's jar. In a plain Python program, call lamina.configure before "
            "the first session (in a notebook: restart the kernel); with spark-submit, add "
            f"`--jars {jar_path()}` or `--packages` with lamina's artifact.",
        ) from None
