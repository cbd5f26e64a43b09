package org.apache.spark.sql.lamina

import org.apache.spark.SparkConf
import org.apache.spark.sql.Dataset
import org.apache.spark.sql.execution.streaming.sources.MemorySink
import org.apache.spark.sql.internal.{SQLConf, StaticSQLConf}
import org.apache.spark.sql.streaming._
import org.apache.spark.sql.streaming.util.StreamManualClock

// Spark's suites of the stateful operators, in both checkpoint formats but for those that PySpark's tests run in both.

class LaminaStreamingAggregationSuite extends StreamingAggregationSuite with LaminaTests
class LaminaStreamingAggregationV2Suite extends StreamingAggregationSuite with LaminaTestsV2

class LaminaStreamingDeduplicationSuite extends StreamingDeduplicationSuite with LaminaTests
class LaminaStreamingDeduplicationV2Suite extends StreamingDeduplicationSuite with LaminaTestsV2

class LaminaFlatMapGroupsWithStateSuite extends FlatMapGroupsWithStateSuite with LaminaTests
class LaminaFlatMapGroupsWithStateV2Suite extends FlatMapGroupsWithStateSuite with LaminaTestsV2

class LaminaStreamingDeduplicationWithinWatermarkV2Suite
    extends StreamingDeduplicationWithinWatermarkSuite
    with LaminaTestsV2
class LaminaMultiStatefulOperatorsV2Suite extends MultiStatefulOperatorsSuite with LaminaTestsV2

// Join state format 2 keeps four stores, format 3 one with column families, format 4 orders them by time.

class LaminaStreamingInnerJoinFourStoresSuite extends StreamingInnerJoinWithoutVCFSuite with LaminaTests
class LaminaStreamingInnerJoinFourStoresV2Suite extends StreamingInnerJoinWithoutVCFSuite with LaminaTestsV2
class LaminaStreamingInnerJoinOneStoreSuite extends StreamingInnerJoinWithVCFSuite with LaminaTests
class LaminaStreamingInnerJoinOneStoreV2Suite extends StreamingInnerJoinWithVCFSuite with LaminaTestsV2
class LaminaStreamingInnerJoinByTimeSuite extends StreamingInnerJoinV4Suite with LaminaTests
class LaminaStreamingInnerJoinByTimeV2Suite extends StreamingInnerJoinV4Suite with LaminaTestsV2

class LaminaStreamingOuterJoinFourStoresV2Suite extends StreamingOuterJoinWithoutVCFSuite with LaminaTestsV2
class LaminaStreamingOuterJoinByTimeSuite extends StreamingOuterJoinV4Suite with LaminaTests
class LaminaStreamingFullOuterJoinFourStoresV2Suite extends StreamingFullOuterJoinWithoutVCFSuite with LaminaTestsV2
class LaminaStreamingFullOuterJoinByTimeSuite extends StreamingFullOuterJoinV4Suite with LaminaTests
class LaminaStreamingLeftSemiJoinFourStoresV2Suite extends StreamingLeftSemiJoinWithoutVCFSuite with LaminaTestsV2
class LaminaStreamingLeftSemiJoinByTimeSuite extends StreamingLeftSemiJoinV4Suite with LaminaTests

class LaminaStreamingSessionWindowV2Suite extends StreamingSessionWindowSuite with LaminaTestsV2

/**
 * Stops a query between two batches. Some of Spark's tests stop one right after they have told its clock to go on, and
 * expect that the next one fails after they have given it data. A batch that was cut off is repeated at once, so that
 * on a slow machine the next one fails before.
 */
trait StopsBetweenBatches extends StreamTest {
  override def testStream(
      stream: Dataset[_],
      outputMode: OutputMode,
      extraOptions: Map[String, String],
      sink: MemorySink
  )(actions: StreamAction*): Unit = {
    val rest = Execute("wait until no batch runs") { query =>
      query.triggerClock match {
        case clock: StreamManualClock =>
          eventually(timeout(streamingTimeout)) {
            assert(clock.isStreamWaitingAt(clock.getTimeMillis()) || !query.isActive)
          }
        case _ =>
      }
    }
    super.testStream(stream, outputMode, extraOptions, sink)(actions.flatMap {
      case StopStream => Seq(rest, StopStream)
      case other => Seq(other)
    }: _*)
  }
}

class LaminaTransformWithStateAvroSuite extends TransformWithStateAvroSuite with StopsBetweenBatches with LaminaTests
class LaminaTransformWithStateAvroV2Suite
    extends TransformWithStateAvroSuite
    with StopsBetweenBatches
    with LaminaTestsV2
class LaminaTransformWithStateV2Suite extends TransformWithStateSuite with StopsBetweenBatches with LaminaTestsV2
class LaminaTransformWithStateUnsafeRowSuite
    extends TransformWithStateUnsafeRowSuite
    with StopsBetweenBatches
    with LaminaTests
class LaminaTransformWithListStateV2Suite extends TransformWithListStateSuite with LaminaTestsV2
class LaminaTransformWithListStateTTLV2Suite extends TransformWithListStateTTLSuite with LaminaTestsV2
class LaminaTransformWithMapStateTTLV2Suite extends TransformWithMapStateTTLSuite with LaminaTestsV2
class LaminaTransformWithValueStateTTLSuite extends TransformWithValueStateTTLSuite with LaminaTests
class LaminaTransformWithStateInitialStateV2Suite extends TransformWithStateInitialStateSuite with LaminaTestsV2
class LaminaTransformWithStateChainingV2Suite extends TransformWithStateChainingSuite with LaminaTestsV2
class LaminaTransformWithMapStateSuite extends TransformWithMapStateSuite with LaminaTests
class LaminaTransformWithMapStateV2Suite extends TransformWithMapStateSuite with LaminaTestsV2

/** The queries of this suite have sessions of their own, on executors that are processes of their own. */
class LaminaTransformWithStateClusterV2Suite extends TransformWithStateClusterSuite with LaminaTestsV2 {
  override def getSparkConf(): SparkConf = super.getSparkConf()
    .set(SQLConf.STATE_STORE_PROVIDER_CLASS.key, LaminaTests.Provider)
    .set(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key, "2")
    .set(StaticSQLConf.SPARK_SESSION_EXTENSIONS.key, classOf[LaminaExtensions].getName)
}

class LaminaEventTimeWatermarkV2Suite extends EventTimeWatermarkSuite with LaminaTestsV2
