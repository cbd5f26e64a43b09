package org.apache.spark.sql.lamina

import org.scalatest.{Args, Status}

import org.apache.spark.sql.execution.streaming.runtime.{MemoryStream, StreamExecution}
import org.apache.spark.sql.execution.streaming.state.{LaggingStores, StateStoreCoordinatorStreamingSuite}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.streaming.Trigger

/**
 * Spark's suite of stores that lag: no snapshot of them was reported for long. Commits of lamina report, too; so the
 * tests of what follows where maintenance comes seldom have a provider whose commits do not.
 */
class LaminaStateStoreCoordinatorStreamingSuite extends StateStoreCoordinatorStreamingSuite with LaminaTests {
  import testImplicits._

  private val provider = SQLConf.STATE_STORE_PROVIDER_CLASS.key
  private val reportsInMaintenance = classOf[ReportsInMaintenanceProvider].getName
  private var isOfMaintenance = false

  override protected def runTest(testName: String, args: Args): Status = {
    isOfMaintenance = testName.startsWith("SPARK-51358: Infrequent maintenance")
    super.runTest(testName, args)
  }

  override protected def withSQLConf[T](pairs: (String, String)*)(f: => T): T =
    super.withSQLConf(pairs.map(LaminaTests.onLamina).map {
      case (`provider`, LaminaTests.Provider) if isOfMaintenance => provider -> reportsInMaintenance
      case other => other
    }: _*)(f)

  /** Checks how many stores lag after short runs of a query that maintenance never comes to. */
  private def checkLagging(count: Int): Unit =
    withSQLConf(
      SQLConf.SHUFFLE_PARTITIONS.key -> "2",
      SQLConf.STREAMING_MAINTENANCE_INTERVAL.key -> "3600000",
      SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT.key -> "1",
      SQLConf.STATE_STORE_COORDINATOR_REPORT_SNAPSHOT_UPLOAD_LAG.key -> "true",
      SQLConf.STATE_STORE_COORDINATOR_MULTIPLIER_FOR_MIN_VERSION_DIFF_TO_LOG.key -> "2",
      SQLConf.STATE_STORE_COORDINATOR_SNAPSHOT_LAG_REPORT_INTERVAL.key -> "0"
    )(withTempDir { checkpoint =>
      val input = MemoryStream[Int]
      def lagging(query: StreamExecution): Int = {
        val coordinator = query.sparkSession.sessionState.streamingQueryManager.stateStoreCoordinator
        LaggingStores.count(coordinator, query.runId, query.lastProgress.batchId + 1)
      }
      val once = Seq(
        AddData(input, 1, 2, 3),
        StartStream(Trigger.AvailableNow, checkpointLocation = checkpoint.getCanonicalPath),
        Execute(_.awaitTermination())
      )
      testStream(input.toDF().dropDuplicates())(
        once ++ once ++ Seq(
          StartStream(checkpointLocation = checkpoint.getCanonicalPath),
          AddData(input, 1, 2, 3),
          ProcessAllAvailable(),
          Execute(query => eventually(timeout(streamingTimeout))(assert(lagging(query) == count))),
          StopStream
        ): _*
      )
    })

  test("stores that maintenance never comes to do not lag, since their commits report") {
    checkLagging(0)
    withSQLConf(provider -> reportsInMaintenance)(checkLagging(2))
  }
}
