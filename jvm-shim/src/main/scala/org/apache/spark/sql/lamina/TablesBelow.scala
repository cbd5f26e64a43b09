package org.apache.spark.sql.lamina

import java.io.File

import org.json4s.{JObject, JValue}
import org.rocksdb.{
  BlockBasedTableConfig,
  BloomFilter,
  Cache,
  LRUCache,
  Options,
  ReadOptions,
  RocksDB,
  RocksDBException,
  RocksIterator,
  Statistics,
  StatsLevel
}

import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.{Below, BelowEntries}
import org.apache.spark.unsafe.Platform

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

  /** Without a process, since threads that are interrupted do it, too. */
  def remove(): Unit = {
    val place = new File(directory)
    Option(place.listFiles).foreach(_.foreach(_.delete()))
    place.delete()
    ()
  }
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
private[lamina] final class TablesBelow private (place: InPlace, options: Options, db: RocksDB) extends Below {
  import TablesBelow._

  private val reading = new ReadOptions()
  @volatile private var failed = false

  override def isBroken: Boolean = failed

  override def version: Long = place.version

  override def diskBytes: Long = place.bytes

  override def files: Long = place.files

  override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] =
    noted(db.get(reading, keyOf(family, keyBase, keyOffset, keyLength)))

  override def read(
      family: Int,
      from: Array[Byte],
      above: Boolean,
      until: Array[Byte],
      into: BelowEntries
  ): Unit = noted(TablesBelow.read(db, reading, family, from, above, until, into))

  private def noted[A](work: => A): A = {
    var ended = false
    try {
      val result = told(place)(work)
      ended = true
      result
    } finally if (!ended) failed = true
  }

  override def close(): Unit = {
    db.close()
    reading.close()
    options.close()
    place.remove()
  }
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

  private var cache: Cache = _

  def get: Cache = synchronized {
    if (cache == null) set(DefaultBytes, 0.1)
    cache
  }

  /**
   * Databases that are opened from now on use a cache of so many bytes; those that are open go on with theirs.
   *
   * @param highPriority the part that is kept for indexes and filters
   */
  def set(bytes: Long, highPriority: Double): Unit = synchronized {
    RocksDB.loadLibrary()
    // that of before is not closed: somebody may have just got it
    cache = new LRUCache(bytes, ShardBits, false, highPriority)
  }
}

private[lamina] object TablesBelow {
  private val FamilyBytes = 2

  /**
   * @param reads what is counted of reads, or null
   * @throws LaminaError `file.damaged`, `storage.failed` naming the directory, which is gone then
   */
  def open(place: InPlace, reads: ReadCounts = null): TablesBelow = {
    var options: Options = null
    try {
      val tables = new BlockBasedTableConfig().setBlockCache(BlockCache.get).setCacheIndexAndFilterBlocks(true)
        .setCacheIndexAndFilterBlocksWithHighPriority(true).setPinTopLevelIndexAndFilter(true).setFilterPolicy(filter)
      // an open database has its files, whatever becomes of its directory
      options = new Options().setTableFormatConfig(tables).setMaxOpenFiles(-1)
      if (reads != null) reads.of(options)
      new TablesBelow(place, options, told(place)(RocksDB.openReadOnly(options, place.directory)))
    } catch {
      case error: Throwable =>
        if (options != null) options.close()
        place.remove()
        throw error
    }
  }

  /** Without one the filters in the tables are not read. */
  lazy val filter = new BloomFilter(10, false)

  /** What [[Below.read]] says, of a database. */
  def read(
      db: RocksDB,
      reading: ReadOptions,
      family: Int,
      from: Array[Byte],
      above: Boolean,
      until: Array[Byte],
      into: BelowEntries
  ): Unit = {
    val start =
      if (from == null) keyOf(family, null, 0L, 0)
      else keyOf(family, from, Platform.BYTE_ARRAY_OFFSET.toLong, from.length)
    val rows = db.newIterator(reading)
    try {
      rows.seek(start)
      if (above && from != null && rows.isValid && java.util.Arrays.equals(rows.key, start)) rows.next()
      read(family, rows, until, into)
      // at a damaged block an iterator seems to be at its end
      rows.status()
    } finally rows.close()
  }

  private def read(family: Int, rows: RocksIterator, until: Array[Byte], into: BelowEntries): Unit = {
    var ended = false
    while (!ended && into.hasRoom) {
      if (!rows.isValid) ended = true
      else {
        val key = rows.key
        val own = java.util.Arrays.copyOfRange(key, FamilyBytes, key.length)
        val isOver = until != null && java.util.Arrays.compareUnsigned(own, until) >= 0
        if (isOver || ((key(0) & 0xff) << 8 | key(1) & 0xff) != family) ended = true
        else {
          into.add(own, rows.value)
          rows.next()
        }
      }
    }
    into.isLast = ended
  }

  def keyOf(family: Int, base: AnyRef, offset: Long, length: Int): Array[Byte] = {
    val key = new Array[Byte](FamilyBytes + length)
    key(0) = (family >>> 8).toByte
    key(1) = family.toByte
    if (length > 0) Platform.copyMemory(base, offset, key, Platform.BYTE_ARRAY_OFFSET.toLong + FamilyBytes, length)
    key
  }

  private def told[A](place: InPlace)(work: => A): A =
    try work
    catch {
      case error: RocksDBException =>
        val kind =
          if (String.valueOf(error.getMessage).contains("orrupt")) LaminaError.FileDamaged
          else LaminaError.StorageFailed
        throw new LaminaError(kind, s"the tables in ${place.directory} cannot be read: ${error.getMessage}", error)
    }
}
