package org.apache.spark.sql.lamina

import org.apache.spark.sql.{DataFrame, Row}
import org.apache.spark.sql.execution.datasources.v2.state._
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider
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

  // A known defect: the feed calls the first append to a new key an update, and the keys of this format come out wrong.
  ignore("the change feed of a join in state format 4 has an append for each row and side") {
    withSQLConf(
      SQLConf.STREAMING_JOIN_STATE_FORMAT_VERSION.key -> "4",
      SQLConf.STREAMING_NO_DATA_MICRO_BATCHES_ENABLED.key -> "true"
    ) {
      withTempDir { checkpoint =>
        runStreamStreamJoinQuery(checkpoint.getAbsolutePath)
        def feed(store: String): DataFrame = spark.read.format("statestore")
          .option("storeName", store)
          .option("readChangeFeed", value = true)
          .option("changeStartBatchId", 0)
          .option("changeEndBatchId", 1)
          .load(checkpoint.getAbsolutePath)
        for (side <- Seq("left", "right"); rows = feed(s"$side-keyWithTsToValues")) {
          checkAnswer(
            rows.select("batch_id", "change_type", "key.field0", s"value.${side}Id"),
            Seq((0L, 2), (0L, 4), (1L, 6), (1L, 8), (1L, 10)).map { case (batch, id) => Row(batch, "append", id, id) }
          )
          checkAnswer(
            feed(s"$side-tsWithKey").select("batch_id", "change_type", "key.field0"),
            rows.select("batch_id", "change_type", "key.field0")
          )
        }
      }
    }
  }
}

class LaminaStateDataSourceChangeDataReaderSuite extends LaminaStateDataSourceChangeDataReaderSuiteBase with LaminaTests
class LaminaStateDataSourceChangeDataReaderV2Suite
    extends LaminaStateDataSourceChangeDataReaderSuiteBase
    with LaminaTestsV2
