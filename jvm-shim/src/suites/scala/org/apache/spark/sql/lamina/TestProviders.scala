package org.apache.spark.sql.lamina

import scala.concurrent.{Await, Promise}
import scala.concurrent.duration.DurationInt

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/**
 * Never tells Spark of partitions 0 and 1 that their chains are short, as Spark's own test providers never do. Of the
 * others Spark knows when their first commit ends, since the tests ask as soon as a batch has ended.
 */
class SilentPartitionsProvider extends LaminaStateStoreProvider {
  private val reported = Promise[Unit]()

  override protected def reportSnapshot(id: StateStoreProviderId): Unit =
    try if (stateStoreId.partitionId > 1) super.reportSnapshot(id)
    finally reported.trySuccess(())

  override private[lamina] def reportCommit(version: Long): Unit = {
    super.reportCommit(version)
    Await.ready(reported.future, 1.minute)
  }
}

/** Tells Spark only in maintenance that its chains are short, as Spark's own providers do. */
class ReportsInMaintenanceProvider extends LaminaStateStoreProvider {
  override private[lamina] def reportCommit(version: Long): Unit = ()
}

/**
 * All opens belong to one run. A suite that names a new run at each open goes back to the first one at will; of two runs
 * under format v1 lamina lets only the newer one write.
 */
class OneRunProvider extends LaminaStateStoreProvider {
  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      storeConf: StateStoreConf,
      hadoopConf: Configuration,
      useMultipleValuesPerKey: Boolean,
      stateSchemaProvider: Option[StateSchemaProvider]
  ): Unit = {
    val conf = new Configuration(hadoopConf)
    conf.set(Compat.runIdKey, OneRunProvider.Run)
    super.init(
      stateStoreId,
      keySchema,
      valueSchema,
      keyStateEncoderSpec,
      useColumnFamilies,
      storeConf,
      conf,
      useMultipleValuesPerKey,
      stateSchemaProvider
    )
  }

  // Spark knows it under the run that the suite named.
  override private[lamina] def isStreaming: Boolean = true
}

object OneRunProvider {
  private val Run = "00000000-0000-4000-8000-000000000001"
}
