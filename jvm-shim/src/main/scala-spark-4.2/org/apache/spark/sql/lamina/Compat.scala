package org.apache.spark.sql.lamina

import java.util.concurrent.locks.ReentrantReadWriteLock

import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{
  TransformWithStateExec,
  TransformWithStateExecBase
}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProvider}

/** What differs between the supported minors of Spark: this is 4.2. */
object Compat {
  // A constant: it is asked for where the rest of this object cannot be made, in another Spark.
  final val sparkMinor = "4.2"

  /** Key of the Hadoop configuration that holds the run id of the query. */
  val runIdKey: String = StreamExecution.RUN_ID_KEY

  /** Local property of the Spark context that the thread of a streaming query sets. */
  val queryIdKey: String = StreamExecution.QUERY_ID_KEY

  /** The operators of `transformWithState`: that of Scala, and what it has in common with that of Python. */
  type TransformWithState = TransformWithStateExec
  type TransformWithStateBase = TransformWithStateExecBase
}

/** How Spark asks a provider for maintenance: 4.2 has one entry point. */
trait MaintenanceEntries extends StateStoreProvider {

  /** Asks the engine to compact and to collect. */
  protected def maintainFiles(): Unit

  /** Gives back memory that no one uses any more. */
  protected def maintainMemory(): Unit

  override def doMaintenance(): Unit = {
    maintainFiles()
    maintainMemory()
  }

  // Spark 4.3 sets these two while it constructs a provider. With them a jar for 4.2 gets as far as saying that it is one.

  def unloaded_=(unloaded: Boolean): Unit = ()

  def org$apache$spark$sql$execution$streaming$state$StateStoreProvider$_setter_$maintenanceLock_=(
      lock: ReentrantReadWriteLock
  ): Unit = ()
}

/** 4.2 registers the column families of a read store by creating them. */
trait FamilyRegistration extends StateStore
