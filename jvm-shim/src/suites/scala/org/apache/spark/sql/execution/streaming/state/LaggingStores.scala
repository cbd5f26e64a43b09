package org.apache.spark.sql.execution.streaming.state

import java.util.UUID

/** What Spark's coordinator tells its own package only. */
object LaggingStores {

  /** How many stores of a run that ends by itself lag behind a version. */
  def count(coordinator: StateStoreCoordinatorRef, runId: UUID, version: Long): Int =
    coordinator.getLaggingStoresForTesting(runId, version, isTerminatingTrigger = true).size
}
