// Spark's heap store with a clock at its opens, for which it has no metric. In a package of Spark's, where it is visible.
package org.apache.spark.sql.lamina.benchmarks

import java.util.concurrent.atomic.LongAdder

import org.apache.spark.sql.execution.streaming.state.{HDFSBackedStateStoreProvider, ReadStateStore, StateStore}

/** Time that opens of stores took, of all tasks together. */
object OpenClock {
  private val nanos = new LongAdder

  def time[T](open: => T): T = {
    val started = System.nanoTime()
    try open
    finally nanos.add(System.nanoTime() - started)
  }

  def millis: Double = nanos.sum() / 1e6
}

final class TimedHdfsProvider extends HDFSBackedStateStoreProvider {
  override def getStore(
      version: Long,
      uniqueId: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore =
    OpenClock.time(super.getStore(version, uniqueId, forceSnapshotOnCommit, loadEmpty))

  override def getReadStore(version: Long, uniqueId: Option[String]): ReadStateStore =
    OpenClock.time(super.getReadStore(version, uniqueId))
}
