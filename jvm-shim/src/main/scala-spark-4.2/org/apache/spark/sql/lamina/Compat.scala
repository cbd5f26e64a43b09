package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreProvider}

/** What differs between the supported minors of Spark: this is 4.2. */
object Compat {
  val sparkMinor = "4.2"

  /** Key of the Hadoop configuration that holds the run id of the query. */
  val runIdKey: String = StreamExecution.RUN_ID_KEY
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
}

/** 4.2 registers the column families of a read store by creating them. */
trait FamilyRegistration extends StateStore
