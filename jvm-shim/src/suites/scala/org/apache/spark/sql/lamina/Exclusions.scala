package org.apache.spark.sql.lamina

import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Paths, StandardOpenOption}

import org.scalatest.funsuite.AnyFunSuiteLike

import org.apache.spark.sql.execution.streaming.state.{HDFSBackedStateStoreProvider, RocksDBStateStoreProvider}

/** Ignores the excluded and the repeated tests of a suite of Spark's, however the suite registers them. */
trait WithoutExcluded extends AnyFunSuiteLike {
  override def tags: Map[String, Set[String]] = {
    val (known, all) = (super.tags, testNames)
    val excluded = all.filter(name => Exclusions.has(getClass, name) || Repeats.has(name, all))
    known ++ excluded.map(name => name -> (known.getOrElse(name, Set.empty) + "org.scalatest.Ignore"))
  }
}

/**
 * The tests of Spark's suites that cannot hold for any provider but the one that they name, each with the reason. A test
 * that fails for another reason is a defect of lamina and does not belong here.
 */
object Exclusions {

  /** Suites by the end of their names, names of tests without the modes that suites append, and the reason. */
  private val excluded: Seq[(String, String, String)] = Seq(
    ("Suite", "SPARK-18342: commit fails when rename fails", "asserts the name of the heap provider's store"),
    ("Suite", "StateStore.get", "asserts the name of the heap provider's file"),
    ("V2Suite", "SPARK-48997: maintenance threads", "its own provider is a heap provider, which refuses format v2"),
    ("Suite", "SPARK-51779 Restart streaming join query with virtual", "asserts a metric of RocksDB's provider"),
    ("Suite", "SPARK-51779 Restart the join query and changing", "asserts a metric of RocksDB's provider"),
    ("V2Suite", "SPARK-26187 restore", GoldenHeap),
    ("V2Suite", "SPARK-39650: recovery from checkpoint having all columns", GoldenHeap),
    ("V2Suite", "simple count, update mode - recovery from checkpoint", GoldenHeap),
    ("V2Suite", "flatMapGroupsWithState - recovery from checkpoint uses state format version 1", GoldenHeap),
    ("V2Suite", "prune results by current_", "deletes commit logs, which under format v2 alone name the state"),
    ("RDDSuite", "SPARK-51955: ReadStateStore reuse", "runs on RocksDB's provider whatever the session has"),
    (
      "Suite",
      "SPARK-51779 Join query using virtual column families with HDFS should fail",
      "asserts the heap provider"
    ),
    (
      "Suite",
      "SPARK-51358: Infrequent maintenance",
      "asserts that only maintenance bounds a chain; lamina's commits do, too"
    ),
    (
      "Suite",
      "read stream-stream join state change feed",
      "asserts each put; lamina's feed is the net change of a batch"
    ),
    (
      "Suite",
      "state data source cdf integration - list state and TTL",
      "asserts each put; lamina's feed is the net change of a batch"
    ),
    ("Suite", "snapshotStartBatchId with transformWithState", "waits for a file of RocksDB's provider")
  )

  private lazy val GoldenHeap: String = "goes on with a checkpoint of the heap provider, which refuses format v2"

  /** Whether a test is excluded. Notes the entry for `tests/suites.py`, which says which ones match no test. */
  def has(suite: Class[_], name: String): Boolean = {
    val entry = excluded.find { case (suites, test, _) =>
      suite.getSimpleName.endsWith(suites) && name.startsWith(test)
    }
    entry.foreach { case (suites, test, _) => note("used", s"$suites\t$test") }
    entry.isDefined
  }

  excluded.foreach { case (suites, test, _) => note("declared", s"$suites\t$test") }

  private def note(file: String, line: String): Unit = {
    val path = Paths.get(System.getProperty("java.io.tmpdir"), s"exclusions-$file.txt")
    Files.write(path, (line + "\n").getBytes(UTF_8), StandardOpenOption.CREATE, StandardOpenOption.APPEND)
    ()
  }
}

/**
 * Tests that differ from another one of their suite only in what they set for a provider of Spark's: on lamina, which
 * stands in for both providers and reads no setting of RocksDB's, the second is the first once more. They run where the
 * environment has LAMINA_SUITES_REPEATS, as in `make test-nightly`.
 */
object Repeats {
  private val Run = sys.env.contains("LAMINA_SUITES_REPEATS")

  /** What a repeated test has in its name, and the other one in its place. */
  private val twins = Seq(
    "(with changelog checkpointing)" -> "(without changelog checkpointing)",
    "(with changelog checkpointing = true)" -> "(with changelog checkpointing = false)",
    s"(with ${classOf[HDFSBackedStateStoreProvider].getName})" -> s"(with ${classOf[RocksDBStateStoreProvider].getName})"
  )

  /** Whether a test repeats one of `all`. */
  def has(name: String, all: Set[String]): Boolean = !Run && twins.exists { case (repeated, twin) =>
    name.contains(repeated) && all.contains(name.replace(repeated, twin))
  }
}
