"""`lamina.configure` without starting Spark: what it sets, and that it takes nothing away."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from lamina.errors import EngineError, SettingsError, VersionError
from lamina.settings import PREFIX, Settings
from lamina.spark import configure, jar_path, launch
from lamina.spark.configure import (
    CHECKPOINT_FORMAT_KEY,
    EXTENSION,
    EXTENSIONS_KEY,
    FILE_MANAGER,
    FILE_MANAGER_KEY,
    PLUGIN,
    PLUGINS_KEY,
    PROVIDER,
    PROVIDER_KEY,
)
from lamina.spark.jars import spark_minors

pyspark_sql = pytest.importorskip("pyspark.sql")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark of the newest minor that has a jar, without anything else that this machine sets."""
    minor = spark_minors()[-1]
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.13-{minor}.0.jar").touch()
    (tmp_path / "conf").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    for name in ("SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def options(builder: Any) -> dict[str, str]:
    return dict(builder._options)


def builder(**conf: str) -> Any:
    fresh = pyspark_sql.SparkSession.Builder()
    return fresh.config(map=conf) if conf else fresh


def test_it_sets_the_provider_what_comes_with_it_the_format_the_backend_and_the_jar_and_nothing_else(
    home: Path,
) -> None:
    assert options(configure(builder())) == {
        PROVIDER_KEY: PROVIDER,
        CHECKPOINT_FORMAT_KEY: "2",
        PREFIX + "backend": "heap",
        "spark.jars": jar_path(),
        EXTENSIONS_KEY: EXTENSION,
        PLUGINS_KEY: PLUGIN,
        PREFIX + "engine.python": sys.executable,
    }


def test_it_warns_of_keys_that_have_no_effect_with_lamina(home: Path) -> None:
    key = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
    with pytest.warns(UserWarning, match=key):
        configure(builder(**{key: "true"}))


@pytest.mark.parametrize(
    ("conf", "arguments"),
    [
        ({"spark.master": "spark://elsewhere:7077"}, ""),
        ({}, "--master yarn pyspark-shell"),
        ({"spark.pyspark.python": "/usr/bin/python3"}, ""),
    ],
)
def test_the_engines_python_is_left_alone_where_this_one_may_not_exist(
    home: Path, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], arguments: str
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    assert PREFIX + "engine.python" not in options(configure(builder(**conf)))


@pytest.mark.parametrize(
    ("conf", "found"),
    [
        ({"spark.master": "yarn"}, "./environment/bin/python"),
        # the shim sees it by itself
        ({"spark.master": "local[2]"}, None),
        ({"spark.master": "yarn", "spark.executorEnv.PYSPARK_PYTHON": "/opt/python"}, None),
        ({"spark.master": "yarn", "spark.pyspark.python": "/opt/python"}, None),
    ],
)
def test_the_engines_python_is_that_of_the_workers_which_executors_do_not_see(
    home: Path, monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], found: str | None
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "./environment/bin/python")
    assert options(configure(builder(**conf))).get(PREFIX + "engine.python") == found


def test_the_engines_python_that_was_asked_for_is_taken(home: Path) -> None:
    assert options(configure(builder(), engine_python="/opt/python"))[PREFIX + "engine.python"] == "/opt/python"


def test_settings_in_snake_case_become_their_keys(home: Path) -> None:
    set_ = options(configure(builder(), compaction_full_interval=3, storage_fsync_enabled=True, heap_max_bytes="2g"))
    assert set_[PREFIX + "compaction.fullInterval"] == "3"
    assert set_[PREFIX + "storage.fsync.enabled"] == "true"
    assert set_[PREFIX + "heap.maxBytes"] == "2g"


def test_an_unknown_setting_names_the_nearest_one(home: Path) -> None:
    with pytest.raises(SettingsError, match=r"compaction_mod\b.* compaction_mode\.") as caught:
        configure(builder(), compaction_mod="full")
    assert caught.value.kind == "settings.unknown"


def test_an_ill_typed_setting_names_its_key(home: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(PREFIX + "compaction.fullInterval")) as caught:
        configure(builder(), compaction_full_interval="often")
    assert caught.value.kind == "settings.invalid"


@pytest.mark.parametrize("place", ["builder", "defaults", "properties file", "arguments"])
def test_with_the_changelog_the_checkpoint_file_manager_that_was_set_anywhere_writes_sparks_logs(
    home: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place in ("defaults", "properties file"):
        file = home / "conf" / "spark-defaults.conf" if place == "defaults" else home / "mine.conf"
        file.write_text(f"{FILE_MANAGER_KEY} x.M\n")
    arguments = {
        "properties file": f"--properties-file {home / 'mine.conf'}",
        "arguments": f"--conf {FILE_MANAGER_KEY}=x.M",
    }
    if place in arguments:
        monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"{arguments[place]} pyspark-shell")
    mine = builder(**({FILE_MANAGER_KEY: "x.M"} if place == "builder" else {}))
    for _ in range(2):
        set_ = options(configure(mine, changelog=True))
        assert set_[FILE_MANAGER_KEY] == FILE_MANAGER
        assert set_[PREFIX + "changelog.checkpointFileManagerClass"] == "x.M"
        assert set_[PREFIX + "durability.level"] == "executor"
    other = configure(builder(), changelog=True, changelog_checkpoint_file_manager_class="x.Other")
    assert options(other)[PREFIX + "changelog.checkpointFileManagerClass"] == "x.Other"


def test_with_the_changelog_no_other_checkpoint_file_manager_is_named_where_none_was_set(home: Path) -> None:
    (home / "conf" / "spark-defaults.conf").write_text(f"{FILE_MANAGER_KEY} {FILE_MANAGER}\n")
    set_ = options(configure(builder(), changelog=True))
    assert set_[FILE_MANAGER_KEY] == FILE_MANAGER and set_[PREFIX + "changelog.enabled"] == "true"
    assert PREFIX + "changelog.checkpointFileManagerClass" not in set_
    assert FILE_MANAGER_KEY not in options(configure(builder()))


def test_jars_extensions_and_plugins_of_the_builder_stay(home: Path) -> None:
    mine = {"spark.jars": "/a.jar,/b.jar", "spark.sql.extensions": "x.E", "spark.plugins": "x.P"}
    set_ = options(configure(builder(**mine)))
    assert set_["spark.jars"] == f"/a.jar,/b.jar,{jar_path()}"
    assert set_["spark.sql.extensions"] == f"x.E,{EXTENSION}"
    assert set_[PLUGINS_KEY] == f"x.P,{PLUGIN}"


def test_jars_of_the_defaults_file_stay(home: Path) -> None:
    (home / "conf" / "spark-defaults.conf").write_text("# mine\nspark.jars  /a.jar, /b.jar\nspark.plugins=x.P\n")
    set_ = options(configure(builder()))
    assert set_["spark.jars"] == f"/a.jar,/b.jar,{jar_path()}"
    assert set_[PLUGINS_KEY] == f"x.P,{PLUGIN}"


def test_jars_of_a_properties_file_in_the_submit_arguments_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "conf" / "spark-defaults.conf").write_text("spark.jars /unused.jar\n")
    (home / "mine.conf").write_text("spark.jars /a.jar\n")
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--properties-file {home / 'mine.conf'} pyspark-shell")
    assert options(configure(builder()))["spark.jars"] == f"/a.jar,{jar_path()}"


def test_the_defaults_file_counts_beside_a_properties_file_where_spark_reads_both(home: Path) -> None:
    (home / "conf" / "spark-defaults.conf").write_text("spark.jars /a.jar\nspark.master local[2]\n")
    (home / "mine.conf").write_text("spark.jars /mine.jar\n")
    arguments = f"--properties-file {home / 'mine.conf'} pyspark-shell"
    assert launch.defaults(home, {"PYSPARK_SUBMIT_ARGS": arguments}) == {"spark.jars": "/mine.jar"}
    assert launch.defaults(home, {"PYSPARK_SUBMIT_ARGS": f"--load-spark-defaults {arguments}"}) == {
        "spark.jars": "/mine.jar",
        "spark.master": "local[2]",
    }


@pytest.mark.parametrize(
    "arguments",
    [
        "--jars '/a b.jar' pyspark-shell",
        "--conf 'spark.jars=/a b.jar' pyspark-shell",
        "'--jars=/a b.jar' pyspark-shell",
        "'--conf=spark.jars=/a b.jar' pyspark-shell",
    ],
)
def test_jars_of_the_submit_arguments_stay_and_reach_the_driver(
    home: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    set_ = options(configure(builder()))
    words = shlex.split(launch.jvm_environment()["PYSPARK_SUBMIT_ARGS"])
    assert words[1].endswith(f"/a b.jar,{jar_path()}")
    assert words[2] == "pyspark-shell"
    assert "spark.jars" not in set_


def test_options_with_their_value_in_one_word_are_read(home: Path) -> None:
    (home / "mine.conf").write_text("spark.jars /a.jar\n")
    arguments = f"--properties-file={home / 'mine.conf'} --master=spark://host:7077 --conf=a=b=c pyspark-shell"
    environment = {"PYSPARK_SUBMIT_ARGS": arguments}
    assert launch.defaults(home, environment) == {"spark.jars": "/a.jar"}
    assert launch.submit_conf(environment) == {"spark.master": "spark://host:7077", "a": "b=c"}


def test_extensions_of_the_defaults_file_and_of_the_submit_arguments_stay(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "conf" / "spark-defaults.conf").write_text("spark.sql.extensions x.E\n")
    assert options(configure(builder()))["spark.sql.extensions"] == f"x.E,{EXTENSION}"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.sql.extensions=y.E pyspark-shell")
    assert "spark.sql.extensions" not in options(configure(builder()))
    assert shlex.split(launch.jvm_environment()["PYSPARK_SUBMIT_ARGS"])[1] == f"spark.sql.extensions=y.E,{EXTENSION}"


def test_twice_sets_nothing_twice(home: Path) -> None:
    once = configure(builder(**{"spark.jars": "/a.jar"}))
    before = options(once)
    assert options(configure(once)) == before


def test_a_spark_without_a_jar_names_the_minors_that_have_one(home: Path) -> None:
    next((home / "jars").iterdir()).unlink()
    (home / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    with pytest.raises(VersionError, match=r"Spark 3\.5 was found.*4\.2 and 4\.3") as caught:
        configure(builder())
    assert caught.value.kind == "version.spark"


def test_a_java_that_is_missing_gets_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(home / "no-java"))
    with pytest.raises(EngineError, match=r"no-java.*needs Java 17 or 21.*Install a JDK"):
        configure(builder())


def test_a_java_that_is_too_old_gets_a_sentence(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = home / "java8" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home / "java8"))
    with pytest.raises(EngineError, match=r"is Java 8, but Spark needs Java 17 or 21"):
        configure(builder())


def test_a_spark_connect_client_is_sent_to_the_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://elsewhere")
    with pytest.raises(SettingsError, match="start the server with --packages"):
        configure(builder())


def test_the_server_that_a_local_remote_starts_gets_the_settings(home: Path) -> None:
    assert options(configure(builder().remote("local[2]")))[PROVIDER_KEY] == PROVIDER


def test_each_properties_file_holds_settings_that_parse(repository: Path) -> None:
    files = sorted((repository / "conf").glob("*.conf"))
    assert files
    for path in files:
        entries = launch.parse_properties(path.read_text(encoding="utf-8"))
        assert entries[PROVIDER_KEY] == PROVIDER
        assert entries[CHECKPOINT_FORMAT_KEY] == "2"
        assert entries[EXTENSIONS_KEY] == EXTENSION
        assert entries[PLUGINS_KEY] == PLUGIN
        settings = Settings.parse(entries)
        assert path.stem == settings.backend + ("-changelog" if settings.changelog_enabled else "")
