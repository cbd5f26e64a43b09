package org.apache.spark.sql.lamina

import java.io.{File, IOException}
import java.nio.file.{Files, Paths}

import org.rocksdb.{
  BlockBasedTableConfig,
  CompressionType,
  FlushOptions,
  Options,
  ReadOptions,
  RocksDB,
  RocksDBException,
  WriteOptions
}

import org.apache.spark.SparkEnv
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.{BelowEntries, Spill}
import org.apache.spark.util.Utils

/**
 * Changes of one transaction in a database of RocksDB of their own, in Spark's local directory; it goes when it is closed. Nothing of
 * it outlives the process: no log is written, and nothing synced.
 */
private[lamina] final class SpillDatabase private (place: File, options: Options, db: RocksDB) extends Spill {
  import SpillDatabase._

  private val reading = new ReadOptions()
  private val writing = new WriteOptions().setDisableWAL(true)
  private val flushing = new FlushOptions().setWaitForFlush(true)
  @volatile private var size = 0L
  @volatile private var failed = false

  override def bytes: Long = size

  override def isBroken: Boolean = failed

  override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] =
    noted(db.get(reading, TablesBelow.keyOf(family, keyBase, keyOffset, keyLength)))

  override def put(family: Int, key: Long, keyLength: Int, entry: Array[Byte]): Unit =
    noted(db.put(writing, TablesBelow.keyOf(family, null, key, keyLength), entry))

  override def flush(): Unit = noted {
    db.flush(flushing)
    size = db.getLongProperty("rocksdb.total-sst-files-size")
  }

  override def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit =
    noted(TablesBelow.read(db, reading, family, from, above, until, into))

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
    Seq(reading, writing, flushing, options).foreach(_.close())
    remove(place)
  }
}

private[lamina] object SpillDatabase {

  /** What it has in memory of rows that are being written. */
  private val WriteBufferBytes = 1L << 20

  /** @throws LaminaError `storage.failed` naming the directory */
  def open(): SpillDatabase = {
    RocksDB.loadLibrary()
    val root = told(new File("spark.local.dir"))(
      Option(SparkEnv.get).fold(System.getProperty("java.io.tmpdir"))(env => Utils.getLocalDir(env.conf))
    )
    val place = told(new File(root))(Files.createTempDirectory(Paths.get(root), "lamina-spill-").toFile)
    val tables = new BlockBasedTableConfig().setBlockCache(BlockCache.get).setCacheIndexAndFilterBlocks(true)
      .setFilterPolicy(TablesBelow.filter)
    val options = new Options().setCreateIfMissing(true).setTableFormatConfig(tables)
      .setWriteBufferSize(WriteBufferBytes).setCompressionType(CompressionType.LZ4_COMPRESSION).setMaxOpenFiles(-1)
    try new SpillDatabase(place, options, told(place)(RocksDB.open(options, place.getPath)))
    catch {
      case error: Throwable =>
        options.close()
        remove(place)
        throw error
    }
  }

  /** Without a process, since threads that are interrupted do it, too. What is left goes with Spark's directory. */
  private def remove(place: File): Unit = {
    Option(place.listFiles).foreach(_.foreach(_.delete()))
    place.delete()
    ()
  }

  private def told[A](place: File)(work: => A): A =
    try work
    catch {
      case error @ (_: RocksDBException | _: IOException) =>
        throw new LaminaError(
          LaminaError.StorageFailed,
          s"changes of a batch for which memory is short cannot be kept in $place: ${error.getMessage}; make room in " +
            "Spark's local directory (spark.local.dir), or give the rows more memory",
          error
        )
    }
}
