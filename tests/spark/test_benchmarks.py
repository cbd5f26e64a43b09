"""The benchmarks' own Scala, which no other test compiles."""

from benchmarks.scala import ROOT, compile_jar
from benchmarks.variants import shim_jar


def test_the_scala_sources_of_all_benchmarks_compile() -> None:
    sources = sorted((ROOT / "benchmarks").glob("*/src"))
    assert {source.parent.name for source in sources} >= {"floor", "memory", "micro", "operators", "restore"}
    assert compile_jar("all", sources, [shim_jar()]).stat().st_size > 0
