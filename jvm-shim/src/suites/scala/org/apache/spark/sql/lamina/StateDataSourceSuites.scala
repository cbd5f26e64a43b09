package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.datasources.v2.state._
import org.apache.spark.sql.execution.streaming.state.{RocksDBStateStoreProvider, StateStoreProvider}
import org.apache.spark.sql.internal.SQLConf

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
    with LaminaTestsV2
