package org.apache.spark.sql.lamina

import java.io.File
import java.util.concurrent.atomic.AtomicInteger

import org.json4s.{JObject, JValue}
import org.rocksdb.{
  BlockBasedTableConfig,
  Cache,
  HyperClockCache,
  Options,
  RocksDB,
  RocksDBException,
  Statistics,
  StatsLevel,
  Status,
  WriteBufferManager
}

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.Below

/**
 * The state of a version as a database of RocksDB in a local directory, which is this JVM's to remove.
 *
 * @param attempt that made the version, where that is known
 * @param bytes of its tables, which are so many `files`; `fetched` of them had to be read from the storage
 */
private[lamina] final case class InPlace(
    directory: String,
    version: Long,
    attempt: Option[String],
    bytes: Long = 0L,
    files: Long = 0L,
    fetched: Long = 0L
) {

  def remove(): Unit = LocalDatabase.remove(new File(directory))
}

private[lamina] object InPlace {

  def fromJson(value: JValue): Option[InPlace] = value match {
    case _: JObject =>
      for {
        directory <- EngineStore.string(value \ "directory")
        version <- EngineStore.long(value \ "version")
      } yield InPlace(
        directory,
        version,
        EngineStore.string(value \ "attempt"),
        EngineStore.long(value \ "bytes").getOrElse(0L),
        EngineStore.long(value \ "files").getOrElse(0L),
        EngineStore.long(value \ "fetched").getOrElse(0L)
      )
    case _ => None
  }
}

/** Reads such a database where it is, with the RocksDB that Spark brings along; its directory goes when it is closed. */
private[lamina] final class TablesBelow private (
    place: InPlace,
    options: Options,
    db: RocksDB,
    override val filesAtLevels: Seq[Long]
) extends LocalDatabase(new File(place.directory), options, db)
    with Below {

  override def isBroken: Boolean = hasFailed

  override def version: Long = place.version

  override def diskBytes: Long = place.bytes

  override def files: Long = place.files

  override def close(): Unit = {
    TablesBelow.opened.decrementAndGet()
    release()
  }

  override protected def told[A](work: => A): A = TablesBelow.told(place)(work)
}

/** What RocksDB counts as rows are read from the tables of one store, by the names of metrics. Under the table's lock. */
private[lamina] final class ReadCounts(names: Set[String]) extends AutoCloseable {
  private val tickers = Metrics.ReadFromTables.filter { case (_, metric) => has(metric) }

  def has(metric: StateStoreCustomMetric): Boolean = names.exists(Metrics.native(_) == metric.name)

  private var statistics: Statistics = _

  /** Counts what a database with these options reads. */
  def of(options: Options): Unit = if (tickers.nonEmpty) {
    if (statistics == null) {
      statistics = new Statistics()
      statistics.setStatsLevel(StatsLevel.EXCEPT_DETAILED_TIMERS)
    }
    options.setStatistics(statistics)
    ()
  }

  def drain(add: (StateStoreCustomMetric, Long) => Unit): Unit = if (statistics != null) {
    tickers.foreach { case (ticker, metric) => add(metric, statistics.getAndResetTickerCount(ticker)) }
  }

  override def close(): Unit = if (statistics != null) {
    statistics.close()
    statistics = null
  }
}

/** Blocks that all databases of this JVM keep in memory: of tables, of their indexes and of their filters. */
private[lamina] object BlockCache {
  private val DefaultBytes = 64L << 20

  /** By bits of the hash: of so many parts each has a lock. Small caches have few, for a part has room for some blocks. */
  private val ShardBits = 4

  /** What a block takes in memory, about: of so much there is a place for each. */
  private val BlockBytes = 4096L

  private var cache: Cache = _

  /** Rows of databases that are written, until they are in files: within the cache's bytes, at most a quarter of them. */
  private var buffers: WriteBufferManager = _

  def writeBuffers: WriteBufferManager = synchronized {
    get
    buffers
  }

  def get: Cache = synchronized {
    if (cache == null) set(DefaultBytes)
    cache
  }

  /** Its bytes that are taken, divided among the databases of tables that are open. */
  def part: Long = get.getUsage / math.max(1, TablesBelow.opened.get)

  /**
   * Databases that are opened from now on use a cache of so many bytes; those that are open go on with theirs.
   *
   * The clock's hand passes more often over blocks of indexes and filters that were not read again than over others.
   */
  def set(bytes: Long): Unit = synchronized {
    RocksDB.loadLibrary()
    // that of before is not closed: somebody may have just got it
    cache = new HyperClockCache(bytes, BlockBytes, ShardBits, false)
    buffers = new WriteBufferManager(bytes / 4, cache)
  }
}

private[lamina] object TablesBelow {

  /** Those of this JVM that are open. */
  private[lamina] val opened = new AtomicInteger

  /**
   * @param reads what is counted of reads, or null
   * @throws LaminaError `file.damaged`, `storage.failed` naming the directory, which is gone then
   */
  def open(place: InPlace, reads: ReadCounts = null): TablesBelow = {
    var options: Options = null
    var db: RocksDB = null
    try {
      options = newOptions()
      if (reads != null) reads.of(options)
      db = told(place)(RocksDB.openReadOnly(options, place.directory))
      val levels = if (reads == null) Nil else told(place)(filesAtLevels(db))
      val below = new TablesBelow(place, options, db, levels)
      opened.incrementAndGet()
      below
    } catch {
      case error: Throwable =>
        if (db != null) db.close()
        if (options != null) options.close()
        place.remove()
        throw error
    }
  }

  private def filesAtLevels(db: RocksDB): Seq[Long] =
    Metrics.FilesAtLevels.indices.map(level => db.getProperty(s"rocksdb.num-files-at-level$level").toLong)

  /** How tables are read. */
  def newOptions(): Options = {
    val tables = new BlockBasedTableConfig().setBlockCache(BlockCache.get).setCacheIndexAndFilterBlocks(true)
      .setCacheIndexAndFilterBlocksWithHighPriority(true).setPinTopLevelIndexAndFilter(true)
      .setFilterPolicy(LocalDatabase.filter)
    // an open database has its files, whatever becomes of its directory
    new Options().setTableFormatConfig(tables).setMaxOpenFiles(-1)
  }

  /** The text names the kind only where there is no status. */
  private def isDamage(error: RocksDBException): Boolean =
    Option(error.getStatus).map(_.getCode == Status.Code.Corruption)
      .getOrElse(String.valueOf(error.getMessage).startsWith("Corruption"))

  private def advice(error: RocksDBException): String =
    if (String.valueOf(error.getMessage).contains("Too many open files"))
      "; this process has each table of its stores open: raise its limit of open files (ulimit -n, on each executor), or " +
        s"have fewer and larger tables (${StoreSettings.Prefix}rocksdb.targetFileSizeBase)"
    else ""

  private def told[A](place: InPlace)(work: => A): A =
    try work
    catch {
      case error: RocksDBException =>
        LocalDatabase.distrust(new File(place.directory))
        val kind =
          if (isDamage(error)) LaminaError.FileDamaged
          else LaminaError.StorageFailed
        throw new LaminaError(
          kind,
          s"the tables in ${place.directory} cannot be read: ${error.getMessage}${advice(error)}",
          error
        )
    }
}
