package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.table.TableMemory

/** The custom metrics of a store, as they show in the query's progress. */
object Metrics {
  val PageBytes = StateStoreCustomSizeMetric("laminaPageBytes", "lamina: bytes of the pages that hold rows")
  val DeadBytes = StateStoreCustomSizeMetric("laminaDeadBytes", "lamina: bytes of replaced rows that await reclaim")
  val IndexBytes = StateStoreCustomSizeMetric("laminaIndexBytes", "lamina: bytes of the hash indexes")
  val UndoBytes = StateStoreCustomSizeMetric("laminaUndoBytes", "lamina: bytes of the undo logs")
  val OrderedBytes = StateStoreCustomSizeMetric("laminaOrderedBytes", "lamina: bytes of the ordered indexes")
  val BufferBytes = StateStoreCustomSizeMetric("laminaBufferBytes", "lamina: bytes of the buffers to the engine")
  val Reloads = StateStoreCustomSumMetric("laminaReloads", "lamina: versions loaded as a whole")
  val CatchUps = StateStoreCustomSumMetric("laminaCatchUps", "lamina: versions reached by loading what changed since")
  val Relabels = StateStoreCustomSumMetric("laminaRelabels", "lamina: opens of a sibling attempt with equal changes")
  val StepBacks = StateStoreCustomSumMetric("laminaStepBacks", "lamina: opens that undid the last commit")
  val HandOvers = StateStoreCustomSumMetric("laminaHandOvers", "lamina: tables taken over from another provider")
  val SkippedCommits = StateStoreCustomSumMetric("laminaSkippedCommits", "lamina: commits that had nothing to write")
  // The name is that of Spark's heap provider.
  val ForcedSnapshots =
    StateStoreCustomSumMetric("forceSnapshotCount", "lamina: full snapshots written because Spark asked for them")
  val ChangedRows = StateStoreCustomSumMetric("laminaChangedRows", "lamina: keys in the change sets sent")
  val ChangedBytes =
    StateStoreCustomSizeMetric("laminaChangedBytes", "lamina: uncompressed bytes of the change sets sent")
  val WrittenBytes = StateStoreCustomSizeMetric(
    "laminaWrittenBytes",
    "lamina: bytes of files that became durable since the last report"
  )
  val DurableMs = StateStoreCustomTimingMetric(
    "laminaDurableMs",
    "lamina: time from the end of sending until files were durable, since the last report"
  )
  val LoadMs = StateStoreCustomTimingMetric("laminaLoadMs", "lamina: time to bring tables to the version asked for")

  val All: Seq[StateStoreCustomMetric] = Seq(
    PageBytes,
    DeadBytes,
    IndexBytes,
    UndoBytes,
    OrderedBytes,
    BufferBytes,
    Reloads,
    CatchUps,
    Relabels,
    StepBacks,
    HandOvers,
    SkippedCommits,
    ForcedSnapshots,
    ChangedRows,
    ChangedBytes,
    WrittenBytes,
    DurableMs,
    LoadMs
  )

  def memory(memory: TableMemory): Map[StateStoreCustomMetric, Long] = Map(
    PageBytes -> memory.pageBytes,
    DeadBytes -> memory.deadBytes,
    IndexBytes -> memory.indexBytes,
    UndoBytes -> memory.undoBytes,
    OrderedBytes -> memory.orderedBytes
  )
}

/**
 * Counts what a store did since its last report. A batch reports once, right after its commit was sent: what becomes
 * known later, such as the size of its file at durability level `task`, is in the next report.
 */
final class Counters {
  private val counts = new java.util.HashMap[StateStoreCustomMetric, Long]()

  def add(metric: StateStoreCustomMetric, amount: Long): Unit = synchronized {
    counts.merge(metric, amount, (old, more) => old + more)
    ()
  }

  /** The counts since the last call, zero where nothing was counted. */
  def drain(): Map[StateStoreCustomMetric, Long] = synchronized {
    val drained = Counters.Counted.map(metric => metric -> counts.getOrDefault(metric, 0L)).toMap
    counts.clear()
    drained
  }
}

object Counters {
  import Metrics._

  private val Counted: Seq[StateStoreCustomMetric] = Seq(
    Reloads,
    CatchUps,
    Relabels,
    StepBacks,
    HandOvers,
    SkippedCommits,
    ForcedSnapshots,
    ChangedRows,
    ChangedBytes,
    WrittenBytes,
    DurableMs,
    LoadMs
  )
}
