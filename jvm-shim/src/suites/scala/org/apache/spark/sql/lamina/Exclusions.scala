package org.apache.spark.sql.lamina

import java.lang.reflect.Modifier.isAbstract

import org.scalatest.funsuite.AnyFunSuiteLike

import org.apache.spark.sql.execution.streaming.state.{HDFSBackedStateStoreProvider, RocksDBStateStoreProvider}

/**
 * Ignores the excluded and the repeated tests of a suite of Spark's, however the suite registers them. Fails where an
 * exclusion names a test that the suite does not have.
 */
trait WithoutExcluded extends AnyFunSuiteLike {
  override def tags: Map[String, Set[String]] = {
    val (known, all) = (super.tags, testNames)
    val excluded = all.filter(name => Exclusions.has(getClass, name) || Repeats.has(getClass, name, all))
    known ++ excluded.map(name => name -> (known.getOrElse(name, Set.empty) + "org.scalatest.Ignore"))
  }

  if (Exclusions.of(getClass).nonEmpty)
    test("each exclusion of this suite names a test of it")(assert(Exclusions.unmatched(getClass, testNames).isEmpty))
}

/**
 * The tests of Spark's suites that cannot hold for any provider but the one that they name, each with the reason. A test
 * that fails for another reason is a defect of lamina and does not belong here.
 */
object Exclusions {

  private type Suite = Class[_ <: WithoutExcluded]

  /** A test by its whole name, without the modes that suites append, in each of the suites. */
  private case class Exclusion(test: String, reason: String, suites: Seq[Suite])

  private val storesV2: Seq[Suite] = Seq(
    classOf[LaminaStateStoreV2Suite],
    classOf[LaminaStateStoreFullV2Suite],
    classOf[LaminaStateStoreRollingV2Suite],
    classOf[LaminaStateStoreTablesV2Suite],
    classOf[LaminaStateStoreChangelogV2Suite],
    classOf[LaminaStateStoreTablesChangelogV2Suite]
  )
  private val stores: Seq[Suite] = storesV2 ++ Seq(
    classOf[LaminaStateStoreSuite],
    classOf[LaminaStateStoreFullSuite],
    classOf[LaminaStateStoreRollingSuite],
    classOf[LaminaStateStoreTablesSuite],
    classOf[LaminaStateStoreRowChecksumSuite]
  )
  private val innerJoinsInOneStoreV2: Seq[Suite] =
    Seq(classOf[LaminaStreamingInnerJoinOneStoreV2Suite], classOf[LaminaStreamingInnerJoinByTimeV2Suite])
  private val innerJoinsInOneStore: Seq[Suite] = innerJoinsInOneStoreV2 ++
    Seq(classOf[LaminaStreamingInnerJoinOneStoreSuite], classOf[LaminaStreamingInnerJoinByTimeSuite])

  private val goldenHeap = "goes on with a checkpoint of the heap provider, which refuses format v2"
  private val namesStore =
    "asserts the name of a built-in provider's store; the rest: 'a commit whose file cannot be renamed fails'"
  private val eachPut =
    "asserts each put within a batch, and the feed is the net change of a batch, by design; the rest: 'the change feed of"

  private val madeByHand =
    "makes a provider without the session's file manager, which durability level executor needs; it runs in the other modes"

  /** Those that hold in all modes but this one. */
  private val behindBarrier: Seq[Exclusion] = Seq(
    Exclusion(
      "getChangeDataReader of state store provider",
      madeByHand,
      Seq(classOf[LaminaStateDataSourceChangeDataReaderV2Suite])
    ),
    Exclusion(
      "provider.getReadStore(snapshotVersion, endVersion)",
      madeByHand,
      Seq(classOf[LaminaStateDataSourceReadV2Suite])
    )
  )

  private val inAllModes: Seq[Exclusion] = Seq(
    Exclusion("SPARK-18342: commit fails when rename fails", namesStore, stores),
    Exclusion(
      "StateStore.get",
      "asserts the name of the heap provider's file; the rest: 'a provider that Spark loads'",
      stores
    ),
    Exclusion(
      "SPARK-48997: maintenance threads with exceptions unload only themselves",
      "its own provider is a heap provider, which refuses format v2",
      storesV2
    ),
    Exclusion(
      "SPARK-51955: ReadStateStore reuse and upgrade to WriteStore",
      "runs on RocksDB's provider whatever the session has",
      Seq(classOf[LaminaStateStoreRDDSuite])
    ),
    Exclusion(
      "SPARK-51779 Restart streaming join query with virtual column families",
      "asserts a metric of RocksDB's provider",
      innerJoinsInOneStore
    ),
    Exclusion(
      "SPARK-51779 Restart the join query and changing state format versions should reuse the version from offset log",
      "asserts a metric of RocksDB's provider",
      innerJoinsInOneStore
    ),
    Exclusion(
      "SPARK-51779 Join query using virtual column families with HDFS should fail",
      "asserts that the heap provider has no column families",
      innerJoinsInOneStore
    ),
    Exclusion(
      "SPARK-26187 restore the stream-stream inner join query from Spark 2.4",
      goldenHeap,
      innerJoinsInOneStoreV2 :+ classOf[LaminaStreamingInnerJoinFourStoresV2Suite]
    ),
    Exclusion(
      "SPARK-39650: recovery from checkpoint having all columns as value schema with sparkVersion=3.3.0",
      goldenHeap,
      Seq(classOf[LaminaStreamingDeduplicationV2Suite])
    ),
    Exclusion(
      "SPARK-39650: recovery from checkpoint having all columns as value schema with sparkVersion=3.5.1",
      goldenHeap,
      Seq(classOf[LaminaStreamingDeduplicationV2Suite])
    ),
    Exclusion(
      "simple count, update mode - recovery from checkpoint uses state format version 1",
      goldenHeap,
      Seq(classOf[LaminaStreamingAggregationV2Suite])
    ),
    Exclusion(
      "flatMapGroupsWithState - recovery from checkpoint uses state format version 1",
      goldenHeap,
      Seq(classOf[LaminaFlatMapGroupsWithStateV2Suite])
    ),
    Exclusion(
      "recovery from Spark ver 2.3.1 commit log without commit metadata (SPARK-24699)",
      goldenHeap,
      Seq(classOf[LaminaEventTimeWatermarkV2Suite])
    ),
    Exclusion(
      "prune results by current_time or localtimestamp, complete mode",
      "deletes commit logs, which under format v2 alone name the state",
      Seq(classOf[LaminaStreamingAggregationV2Suite])
    ),
    Exclusion(
      "prune results by current_date, complete mode",
      "deletes commit logs, which under format v2 alone name the state",
      Seq(classOf[LaminaStreamingAggregationV2Suite])
    ),
    Exclusion(
      "read stream-stream join state change feed",
      s"$eachPut a join in state format 2'",
      Seq(
        classOf[LaminaStateDataSourceChangeDataReaderSuite],
        classOf[LaminaStateDataSourceChangeDataReaderV2Suite]
      )
    ),
    Exclusion(
      "state data source cdf integration - list state and TTL",
      s"$eachPut list state with TTL'",
      Seq(classOf[LaminaStateDataSourceTransformWithStateV2Suite])
    ),
    Exclusion(
      "snapshotStartBatchId with transformWithState",
      "waits for files of RocksDB's provider and rewrites one; the rest: 'a version of transformWithState'",
      Seq(classOf[LaminaStateDataSourceTransformWithStateV2Suite])
    )
  )

  private val all =
    inAllModes ++ (if (LaminaTests.Mode.endsWith(LaminaTests.Changelog)) behindBarrier else Nil)

  // sbt runs every suite that is not abstract, and with it the check of its exclusions
  assert(all.flatMap(_.suites).forall(suite => !isAbstract(suite.getModifiers)))

  /** The names of the tests that are excluded from a suite. */
  def of(suite: Class[_]): Set[String] = all.filter(_.suites.contains(suite)).map(_.test).toSet

  def has(suite: Class[_], name: String): Boolean = of(suite).contains(withoutModes(name))

  /** Which exclusions of a suite none of its tests has for a name. */
  def unmatched(suite: Class[_], names: Set[String]): Set[String] = of(suite) -- names.map(withoutModes)

  private def withoutModes(name: String): String = Modes.replaceFirstIn(name, "")

  /** Modes that suites of Spark append, one after the other. */
  private lazy val Modes = raw"( \((with|without|encoding =) [^()]*\)| - state format version \d)+$$".r
}

/**
 * Tests that differ from another one only in what they set for a provider of Spark's: on lamina, which stands in for both
 * providers and reads no setting of RocksDB's, the second is the first once more. And suites that run in one mode what
 * another suite runs in another. They run where the environment has LAMINA_REPEATS, as in `make test-nightly`.
 */
object Repeats {
  private val Run = sys.env.contains("LAMINA_REPEATS")

  private val suites: Seq[Class[_]] = Seq(
    // LaminaTransformWithStateAvroV2Suite, in format v1
    classOf[LaminaTransformWithStateAvroSuite],
    // LaminaTransformWithStateV2Suite, which has this encoding since it is Spark's default, in format v1
    classOf[LaminaTransformWithStateUnsafeRowSuite],
    // their V2Suite, in format v1; LaminaStreamingInnerJoinByTimeSuite has inner joins in v1
    classOf[LaminaStreamingInnerJoinFourStoresSuite],
    classOf[LaminaStreamingInnerJoinOneStoreSuite],
    // LaminaStreamingInnerJoinByTimeSuite, in format v2; the V2Suites of the two above have inner joins in v2
    classOf[LaminaStreamingInnerJoinByTimeV2Suite],
    // LaminaStateDataSourceReadV2Suite, in format v1; LaminaStateDataSourceChangeDataReaderSuite reads versions in v1
    classOf[LaminaStateDataSourceReadSuite],
    // their V2Suite, in format v1; LaminaStateStoreSuite has what differs in v1
    classOf[LaminaStateStoreFullSuite],
    classOf[LaminaStateStoreRollingSuite],
    classOf[LaminaStateStoreTablesSuite]
  )

  /**
   * Suites that run each test in both encodings of rows, or both of an operator's own formats of state: where another suite
   * has both, too. LaminaTransformWithStateAvroV2Suite and LaminaTransformWithListStateV2Suite have each kind of family in
   * Avro, LaminaFlatMapGroupsWithStateV2Suite both of the operator's formats.
   */
  private val inBoth: Map[Class[_], (String, String)] = Seq(
    classOf[LaminaTransformWithListStateTTLV2Suite],
    classOf[LaminaTransformWithMapStateTTLV2Suite],
    classOf[LaminaTransformWithValueStateTTLSuite],
    classOf[LaminaTransformWithStateInitialStateV2Suite],
    classOf[LaminaTransformWithStateChainingV2Suite]
  ).map(_ -> ("(encoding = avro)" -> "(encoding = unsaferow)")).toMap[Class[_], (String, String)] +
    (classOf[LaminaFlatMapGroupsWithStateSuite] -> ("state format version 1" -> "state format version 2"))

  /** What a repeated test has in its name, and the other one of its suite in its place. */
  private val twins = Seq(
    "(with changelog checkpointing)" -> "(without changelog checkpointing)",
    "(with changelog checkpointing = true)" -> "(with changelog checkpointing = false)",
    s"(with ${classOf[HDFSBackedStateStoreProvider].getName})" -> s"(with ${classOf[RocksDBStateStoreProvider].getName})"
  )

  /** Whether a test, one of `all` of its suite, repeats another one. */
  def has(suite: Class[_], name: String, all: Set[String]): Boolean =
    !Run && (suites.contains(suite) || (twins ++ inBoth.get(suite)).exists { case (repeated, twin) =>
      name.contains(repeated) && all.contains(name.replace(repeated, twin))
    })
}
