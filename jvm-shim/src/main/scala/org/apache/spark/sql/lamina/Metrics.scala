package org.apache.spark.sql.lamina

import scala.collection.mutable.ArrayBuffer

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.table.TableMemory

/** The custom metrics of a store, as they show in the query's progress. */
object Metrics {
  private val all, counted = ArrayBuffer.empty[StateStoreCustomMetric]

  // What a store holds at the moment of a report.

  val PageBytes = held("laminaPageBytes", "bytes of the pages that hold rows")
  val DeadBytes = held("laminaDeadBytes", "bytes of replaced rows that await reclaim")
  val IndexBytes = held("laminaIndexBytes", "bytes of the hash indexes")
  val UndoBytes = held("laminaUndoBytes", "bytes of the undo logs")
  val OrderedBytes = held("laminaOrderedBytes", "bytes of the ordered indexes")
  val BufferBytes = held("laminaBufferBytes", "bytes of the buffers to the engine")
  val CopiedBytes = held("laminaCopiedBytes", "bytes of local disk that copies of remote files take")

  // What a store did since its last report.

  val Reloads = count("laminaReloads", "versions loaded as a whole")
  val CatchUps = count("laminaCatchUps", "versions reached by loading what changed since")
  val Relabels = count("laminaRelabels", "opens of a sibling attempt with equal changes")
  val StepBacks = count("laminaStepBacks", "opens that undid the last commit")
  val Raises = count("laminaTableLists", "lists of tables that came below")
  val HandOvers = count("laminaHandOvers", "tables taken over from another provider")
  val SkippedCommits = count("laminaSkippedCommits", "commits that had nothing to write")
  // The name is that of Spark's heap provider.
  val ForcedSnapshots = count("forceSnapshotCount", "full snapshots written because Spark asked for them")
  val ChangedRows = count("laminaChangedRows", "keys in the change sets sent")
  val ChangedBytes = size("laminaChangedBytes", "uncompressed bytes of the change sets sent")
  val WrittenBytes = size("laminaWrittenBytes", "bytes of files that became durable since the last report")
  val DurableMs =
    time("laminaDurableMs", "time from the end of sending until files were durable, since the last report")
  val Segments = count("laminaSegments", "segments that compaction wrote")
  val CollectedFiles = count("laminaCollectedFiles", "files deleted since no retained version needs them")
  val CollectedBytes = size("laminaCollectedBytes", "bytes of the files deleted")
  val LoadMs = time("laminaLoadMs", "time to bring tables to the version asked for")

  val All: Seq[StateStoreCustomMetric] = all.toSeq

  /** Those that [[Counters]] adds up. */
  val Counted: Seq[StateStoreCustomMetric] = counted.toSeq

  def memory(memory: TableMemory): Map[StateStoreCustomMetric, Long] = Map(
    PageBytes -> memory.pageBytes,
    DeadBytes -> memory.deadBytes,
    IndexBytes -> memory.indexBytes,
    UndoBytes -> memory.undoBytes,
    OrderedBytes -> memory.orderedBytes
  )

  private def held(name: String, what: String) = named(StateStoreCustomSizeMetric(name, s"lamina: $what"))

  private def count(name: String, what: String) = added(StateStoreCustomSumMetric(name, s"lamina: $what"))

  private def size(name: String, what: String) = added(StateStoreCustomSizeMetric(name, s"lamina: $what"))

  private def time(name: String, what: String) = added(StateStoreCustomTimingMetric(name, s"lamina: $what"))

  private def added(metric: StateStoreCustomMetric): StateStoreCustomMetric = {
    counted += metric
    named(metric)
  }

  private def named(metric: StateStoreCustomMetric): StateStoreCustomMetric = {
    all += metric
    metric
  }
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
    val drained = Metrics.Counted.map(metric => metric -> counts.getOrDefault(metric, 0L)).toMap
    counts.clear()
    drained
  }
}
