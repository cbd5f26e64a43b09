package org.apache.spark.sql.lamina

import scala.collection.mutable.ArrayBuffer

import org.rocksdb.TickerType

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.table.{Below, TableMemory}

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
  val LocalBytes = held(
    "laminaLocalDiskBytes",
    "bytes of local disk that tables and merges of the executor take, whether or not they are copies, too"
  )

  val Increments = named(
    StateStoreCustomSumMetric(
      "laminaIncrements",
      "lamina: increments, in files and in log objects, of the version of the store's last durable commit: none of them is merged yet"
    )
  )
  val IncrementBytes = held("laminaIncrementBytes", "bytes of these as they are stored")

  val StoredBytes = held(
    "laminaStoredBytes",
    "bytes of the store's files, and of its commits in log objects, that the last collection left"
  )
  val NewestBytes = held("laminaNewestBytes", "bytes of these that the newest version needed then")

  // Named as those of Spark's RocksDB provider, but for the prefix.
  val SstFileBytes = held("laminaSstFileSize", "bytes on the local disk of the tables that the store stands on")
  val SstFiles = held("laminaSstFiles", "files of these")

  // What a store did since its last report.

  val Reloads = count("laminaReloads", "versions loaded as a whole")
  val CatchUps = count("laminaCatchUps", "versions reached by loading what changed since")
  val Relabels = count("laminaRelabels", "opens of a sibling attempt with equal changes")
  val StepBacks = count("laminaStepBacks", "opens that undid the last commit")
  val Raises = count("laminaTableLists", "lists of tables that came below")
  val FetchedBytes = size("laminaFetchedBytes", "bytes of tables that restores read from the storage")
  val ReusedBytes = size("laminaReusedBytes", "bytes of tables that restores found on the local disk")
  val MemoryWaits = count(
    "laminaMemoryWaits",
    "opens that waited for rows to be put into tables, for want of memory or since each commit is to have tables"
  )
  val MemoryWaitMs = time("laminaMemoryWaitMs", "time for which opens waited for that")
  val SpilledBytes =
    size("laminaSpilledBytes", "bytes of changes that batches kept on the local disk, for want of memory")
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
  val MergeMs = time("laminaMergeMs", "time of merges of increments, segments or tables, beside the batches")
  val FailedMerges =
    count("laminaFailedMerges", "merges of increments, segments or tables that failed, or were lost with their process")
  val LoadMs = time("laminaLoadMs", "time to bring tables to the version asked for")
  val ReplayedBytes = size("laminaReplayedBytes", "bytes of increments, as they are stored, that loads read")

  // Those that the setting `rocksdb.metrics` names, by what they are called there and after the prefix.

  /** RocksDB does not count it of a database that is open for reading only. */
  val GetCount = count(native("getCount"), "rows looked for in tables")

  /** What RocksDB counts as rows are read from tables. */
  val ReadFromTables: Map[TickerType, StateStoreCustomMetric] = Map(
    TickerType.BLOCK_CACHE_HIT -> count(native("readBlockCacheHitCount"), "blocks that were in the cache of blocks"),
    TickerType.BLOCK_CACHE_MISS -> count(native("readBlockCacheMissCount"), "blocks that were not"),
    TickerType.BYTES_READ -> size(native("totalBytesRead"), "bytes of rows read from tables one by one"),
    TickerType.ITER_BYTES_READ -> size(native("totalBytesReadThroughIterator"), "bytes of rows scanned in tables"),
    TickerType.BLOOM_FILTER_USEFUL -> count(native("bloomFilterUsefulCount"), "reads of tables that filters spared")
  )

  /** Files of tables by their level, which a store stands on at the moment of a report. */
  val FilesAtLevels: Seq[StateStoreCustomMetric] =
    (0 to 6).map(level => count(native(s"numFilesAtLevel$level"), s"files of tables at level $level"))

  /** Each store that has tables open says an equal part, so that those of all add up. */
  val BlockCacheUsage =
    size(native("blockCacheUsage"), "bytes that are taken of the cache of blocks, which stores share")

  /** What the engine says of merges, by its names. */
  val Merged: Map[String, StateStoreCustomMetric] = Map(
    "totalBytesReadByCompaction" -> size(native("totalBytesReadByCompaction"), "bytes that merges of tables read"),
    "totalBytesWrittenByCompaction" -> size(native("totalBytesWrittenByCompaction"), "bytes that merges wrote"),
    "totalCompactionLatencyMs" -> time(native("totalCompactionLatencyMs"), "time of merges of tables")
  )

  /** What the engine says of log objects, which stores share: each is counted for one of them. */
  val Logs: Map[String, StateStoreCustomMetric] = Map(
    "uploads" -> count("laminaLogObjects", "log objects that became durable"),
    "commits" -> count("laminaLogCommits", "commits in these"),
    "bytes" -> size("laminaLogBytes", "bytes of these"),
    "early_bytes" -> size(
      "laminaLogEarlyBytes",
      "bytes of commits in those of them that were whole before the last commit of their batch came; the batch waited for the rest"
    ),
    "queued_ms" -> time("laminaLogQueuedMs", "time that log objects waited for others to be uploaded first"),
    "queue_depth" -> count(
      "laminaLogQueueDepth",
      "log objects that waited when the upload of another one began, added up: to be divided by laminaLogObjects"
    ),
    "upload_ms" -> time("laminaLogUploadMs", "time that these took to become durable"),
    "upload_p50_ms" -> time(
      "laminaLogUploadP50Ms",
      "median time of an executor's last uploads, added up over log objects: to be divided by laminaLogObjects"
    ),
    "upload_p99_ms" -> time("laminaLogUploadP99Ms", "99th percentile of these, added up in the same way"),
    "attempts" -> count("laminaLogAttempts", "attempts to upload log objects"),
    "failed" -> count("laminaLogFailures", "log objects that did not become durable"),
    "hedges" -> count("laminaLogHedges", "second attempts beside a slow one"),
    "hedges_won" -> count("laminaLogHedgesWon", "second attempts that were quicker")
  )

  val All: Seq[StateStoreCustomMetric] = all.toSeq

  /** Those that [[Counters]] adds up. */
  val Counted: Seq[StateStoreCustomMetric] = counted.toSeq

  /** How a metric is called that the setting `rocksdb.metrics` calls `name`. */
  def native(name: String): String = "lamina" + name.capitalize

  /** What a state below takes on the local disk. */
  def tables(below: Below): Map[StateStoreCustomMetric, Long] =
    if (below == null) Map.empty else Map(SstFileBytes -> below.diskBytes, SstFiles -> below.files)

  /** What the version of a store's last commit has above what was merged, and what the store takes in the storage. */
  def stored(engine: EngineStore): Map[StateStoreCustomMetric, Long] = {
    val (count, bytes) = engine.increments
    val (stored, newest) = engine.space
    Map(Increments -> count, IncrementBytes -> bytes, StoredBytes -> stored, NewestBytes -> newest)
  }

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
