package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{
  TransformWithStateExec,
  TransformWithStateExecBase
}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{KeyStateEncoderSpec, StateStore, StateStoreProvider}
import org.apache.spark.sql.types.StructType

/** What differs between the supported minors of Spark: this is 4.3. */
object Compat {
  // A constant: it is asked for where the rest of this object cannot be made, in another Spark.
  final val sparkMinor = "4.3"

  /** Key of the Hadoop configuration that holds the run id of the query. */
  val runIdKey: String = StreamExecution.RUN_ID_KEY

  /** Local property of the Spark context that the thread of a streaming query sets. */
  val queryIdKey: String = StreamExecution.QUERY_ID_KEY

  /** The operators of `transformWithState`: that of Scala, and what it has in common with that of Python. */
  type TransformWithState = TransformWithStateExec
  type TransformWithStateBase = TransformWithStateExecBase
}

/**
 * How Spark asks a provider for maintenance: 4.3 has two pools that call a provider at the same time, and the one entry
 * point of before, which the unloading of a provider uses.
 */
trait MaintenanceEntries extends StateStoreProvider {

  /** Asks the engine to compact and to collect. */
  protected def maintainFiles(): Unit

  /** Gives back memory that no one uses any more. */
  protected def maintainMemory(): Unit

  override def doMaintenance(): Unit = {
    maintainFiles()
    maintainMemory()
  }

  override def doSnapshotMaintenance(): Unit = maintainFiles()

  override def doCleanupMaintenance(): Unit = maintainMemory()
}

/** 4.3 tells a read store how to decode a column family without creating it. */
trait FamilyRegistration extends StateStore {
  override def registerColFamily(
      colFamilyName: String,
      keySchema: StructType,
      valueSchema: StructType,
      keyStateEncoderSpec: KeyStateEncoderSpec,
      useMultipleValuesPerKey: Boolean,
      isInternal: Boolean
  ): Unit =
    createColFamilyIfAbsent(
      colFamilyName,
      keySchema,
      valueSchema,
      keyStateEncoderSpec,
      useMultipleValuesPerKey,
      isInternal
    )
}
