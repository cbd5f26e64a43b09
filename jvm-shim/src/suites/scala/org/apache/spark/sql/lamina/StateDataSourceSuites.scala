package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.datasources.v2.state._
import org.apache.spark.sql.execution.streaming.state.StateStoreProvider

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
}

class LaminaStateDataSourceChangeDataReaderSuite extends LaminaStateDataSourceChangeDataReaderSuiteBase with LaminaTests
class LaminaStateDataSourceChangeDataReaderV2Suite
    extends LaminaStateDataSourceChangeDataReaderSuiteBase
    with LaminaTestsV2
