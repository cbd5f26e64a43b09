package org.apache.spark.sql.lamina

import java.io.File

import org.apache.spark.sql.{DataFrame, DataFrameReader, Row}
import org.apache.spark.sql.execution.datasources.v2.state._
import org.apache.spark.sql.execution.streaming.runtime.MemoryStream
import org.apache.spark.sql.execution.streaming.state.{RocksDBStateStoreProvider, StateStoreProvider}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.{OutputMode, RunningCountStatefulProcessor, TimeMode, Trigger}
import org.apache.spark.sql.streaming.util.StreamManualClock

/**
 * Spark's suite of the state reader, with the tests that it leaves to the suite of each provider: not those that read
 * golden checkpoints of that provider, nor that versions without a snapshot are refused, since each version serves here.
 */
abstract class LaminaStateDataSourceReadSuiteBase extends StateDataSourceReadSuite {
  override protected def newStateStoreProvider(): StateStoreProvider = new LaminaStateStoreProvider

  test("provider.getReadStore(snapshotVersion, endVersion)")(testGetReadStoreWithStartVersion())
  test("option snapshotPartitionId")(testSnapshotPartitionId())
  test("snapshotStartBatchId on join state v3")(testSnapshotOnJoinStateV3())
  test("snapshotStartBatchId on join state v4")(testSnapshotOnJoinStateV4())
}

class LaminaStateDataSourceReadSuite extends LaminaStateDataSourceReadSuiteBase with LaminaTests
class LaminaStateDataSourceReadV2Suite extends LaminaStateDataSourceReadSuiteBase with LaminaTestsV2

abstract class LaminaStateDataSourceChangeDataReaderSuiteBase extends StateDataSourceChangeDataReaderSuite {
  override protected def newStateStoreProvider(): StateStoreProvider = new LaminaStateStoreProvider

  test("the change feed of a join in state format 2 is the net change of each batch") {
    import testImplicits._
    withTempDir { checkpoint =>
      val input = MemoryStream[(Int, Long)]
      val left = input.toDF().toDF("leftKey", "leftValue")
      val right = input.toDF().select(($"_1" * 2).as("rightKey"), $"_2".as("rightValue"))
      testStream(left.join(right, $"leftKey" === $"rightKey"))(
        StartStream(checkpointLocation = checkpoint.getAbsolutePath),
        AddData(input, (1, 1L), (2, 2L)),
        ProcessAllAvailable(),
        AddData(input, (3, 3L), (4, 4L)),
        ProcessAllAvailable()
      )
      def feed(store: String): DataFrame = spark.read.format("statestore")
        .option("storeName", store)
        .option("readChangeFeed", value = true)
        .option("changeStartBatchId", 0)
        .option("changeEndBatchId", 1)
        .load(checkpoint.getAbsolutePath)
      checkAnswer(
        feed("left-keyWithIndexToValue"),
        Seq(
          Row(0L, "update", Row(1, 0L), Row(1, 1L, false), 3),
          // put as not matched, then as matched
          Row(0L, "update", Row(2, 0L), Row(2, 2L, true), 4),
          Row(1L, "update", Row(3, 0L), Row(3, 3L, false), 1),
          Row(1L, "update", Row(4, 0L), Row(4, 4L, true), 2)
        )
      )
      checkAnswer(
        feed("left-keyToNumValues"),
        Seq((0L, 1, 3), (0L, 2, 4), (1L, 3, 1), (1L, 4, 2)).map { case (batch, key, partition) =>
          Row(batch, "update", Row(key), Row(1L), partition)
        }
      )
    }
  }

  /** The change feed of a store after Spark's stream-stream join in state format 4 ran on a provider. */
  private def joinFeeds(provider: String, stores: Seq[String]): Seq[Seq[String]] = {
    var feeds = Seq.empty[Seq[String]]
    spark.conf.set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, provider)
    try withTempDir { checkpoint =>
        runStreamStreamJoinQuery(checkpoint.getAbsolutePath)
        feeds = stores.map { store =>
          val feed = spark.read.format("statestore")
            .option("storeName", store)
            .option("readChangeFeed", value = true)
            .option("changeStartBatchId", 0)
            .load(checkpoint.getAbsolutePath)
          feed.collect().map(_.toString).sorted.toSeq
        }
      }
    finally spark.conf.set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, LaminaTests.Provider)
    feeds
  }

  test("the change feed of a join in state format 4 is the one of RocksDB's provider") {
    withSQLConf(
      SQLConf.STREAMING_JOIN_STATE_FORMAT_VERSION.key -> "4",
      SQLConf.STREAMING_NO_DATA_MICRO_BATCHES_ENABLED.key -> "true",
      "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled" -> "true"
    ) {
      val stores = Seq("left-keyWithTsToValues", "left-tsWithKey", "right-keyWithTsToValues", "right-tsWithKey")
      val ours = joinFeeds(LaminaTests.Provider, stores)
      val theirs = joinFeeds(classOf[RocksDBStateStoreProvider].getName, stores)
      for (((store, feed), expected) <- stores.zip(ours).zip(theirs)) {
        assert(expected.nonEmpty)
        assert(feed == expected, store)
      }
    }
  }
}

class LaminaStateDataSourceChangeDataReaderSuite extends LaminaStateDataSourceChangeDataReaderSuiteBase with LaminaTests
class LaminaStateDataSourceChangeDataReaderV2Suite
    extends LaminaStateDataSourceChangeDataReaderSuiteBase
    with LaminaTestsV2

class LaminaStateDataSourceTransformWithStateV2Suite
    extends StateDataSourceTransformWithStateSuite
    with LaminaTestsV2 {
  import testImplicits._

  private def reader(checkpoint: File, variable: String): DataFrameReader =
    spark.read.format("statestore").option("path", checkpoint.getAbsolutePath).option("stateVarName", variable)

  test("the change feed of list state with TTL is the net change of each batch") {
    withTempDir { checkpoint =>
      val (input, clock) = (MemoryStream[(String, String)], new StreamManualClock)
      val grouped = input.toDS().groupByKey(_._1)
        .transformWithState(new SessionGroupsStatefulProcessorWithTTL, TimeMode.ProcessingTime(), OutputMode.Update())
      testStream(grouped)(
        StartStream(Trigger.ProcessingTime("1 second"), clock, checkpointLocation = checkpoint.getCanonicalPath),
        AddData(input, "session1" -> "group2", "session1" -> "group1", "session2" -> "group1"),
        AdvanceManualClock(5000),
        CheckNewAnswer(),
        AddData(input, "session3" -> "group7", "session1" -> "group4"),
        AdvanceManualClock(30000),
        CheckNewAnswer(),
        StopStream
      )
      val feed = reader(checkpoint, "groupsListWithTTL")
        .option("readChangeFeed", value = true)
        .option("changeStartBatchId", 0)
        .load()
      checkAnswer(
        feed.selectExpr("change_type", "key.value", "list_element.value.value", "partition_id"),
        Seq(
          Row("append", "session1", "group2", 0),
          Row("append", "session1", "group1", 0),
          Row("append", "session2", "group1", 0),
          // group4 was appended, then the list was written anew without what had expired
          Row("update", "session1", "group4", 0),
          Row("delete", "session2", null, 0),
          Row("append", "session3", "group7", 3)
        )
      )
      val expirations = feed.where("list_element IS NOT NULL").selectExpr("list_element.ttlExpirationMs").as[Long]
      assert(expirations.collect().forall(_ > 0))
    }
  }

  test("a version of transformWithState is read from each earlier version that a reader may start from") {
    withSQLConf(SQLConf.SHUFFLE_PARTITIONS.key -> "2")(withTempDir { checkpoint =>
      val input = MemoryStream[String]
      val counted = input.toDS().groupByKey(identity)
        .transformWithState(new RunningCountStatefulProcessor, TimeMode.None(), OutputMode.Update())
      val batches = Seq(Seq("a", "b", "c", "d"), Seq("c", "e", "f"), Seq("a", "g", "h"))
      val added = batches.flatMap(keys => Seq(AddData(input, keys: _*), ProcessAllAvailable()))
      val actions = StartStream(checkpointLocation = checkpoint.getCanonicalPath) +: added
      testStream(counted, OutputMode.Update())(actions: _*)
      val whole = reader(checkpoint, "countState").load()
      for (partition <- 0 to 1; start <- batches.indices) {
        val expected = whole.where($"partition_id" === partition).collect().toSeq
        assert(expected.nonEmpty)
        checkAnswer(
          reader(checkpoint, "countState")
            .option("snapshotPartitionId", partition)
            .option("snapshotStartBatchId", start)
            .load(),
          expected
        )
      }
    })
  }
}
