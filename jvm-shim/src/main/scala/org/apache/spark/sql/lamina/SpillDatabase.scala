package org.apache.spark.sql.lamina

import java.io.{File, IOException}
import java.nio.file.{Files, Paths}

import scala.jdk.CollectionConverters._

import org.rocksdb.{
  AbstractEventListener,
  BackgroundErrorReason,
  BlockBasedTableConfig,
  CompressionType,
  FlushOptions,
  Options,
  RocksDB,
  RocksDBException,
  Status,
  WriteOptions
}
import org.rocksdb.AbstractEventListener.EnabledEventCallback

import org.apache.spark.SparkEnv
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.Spill
import org.apache.spark.util.Utils

/**
 * Changes of one transaction in a database of RocksDB of their own, in Spark's local directory; it goes when it is closed. What is left
 * of one goes with that directory. Nothing of it outlives the process: no log is written, and nothing synced.
 */
private[lamina] final class SpillDatabase private (place: File, options: Options, db: RocksDB)
    extends LocalDatabase(place, options, db)
    with Spill {

  private val writing = new WriteOptions().setDisableWAL(true)
  private val flushing = new FlushOptions().setWaitForFlush(true)
  @volatile private var size = 0L

  override def bytes: Long = size

  override def isBroken: Boolean = hasFailed

  override def put(family: Int, key: Long, keyLength: Int, entry: Array[Byte]): Unit =
    noted(db.put(writing, LocalDatabase.keyOf(family, null, key, keyLength), entry))

  override def flush(): Unit = noted {
    db.flush(flushing)
    size = db.getLongProperty("rocksdb.total-sst-files-size")
  }

  override def close(): Unit = {
    release()
    writing.close()
    flushing.close()
  }

  override protected def told[A](work: => A): A = SpillDatabase.told(place)(work)
}

private[lamina] object SpillDatabase {

  /** What it has in memory of rows that are being written. */
  private val WriteBufferBytes = 1L << 20

  /** What the first of them takes: small, since many databases share the buffers. */
  private val ArenaBytes = 16L << 10

  /**
   * Where a disk is full RocksDB waits for room by itself. That wait needs the turn of who writes, and who writes waits for it to end while
   * both buffers are full: for ever (9.8). Without it the write fails.
   */
  private lazy val withoutRecovery =
    new AbstractEventListener(EnabledEventCallback.ON_ERROR_RECOVERY_BEGIN) {
      override def onErrorRecoveryBegin(reason: BackgroundErrorReason, error: Status): Boolean = false
    }

  /** @throws LaminaError `storage.failed` naming the directory */
  def open(): SpillDatabase = {
    RocksDB.loadLibrary()
    val root = told(new File("spark.local.dir"))(
      Option(SparkEnv.get).fold(System.getProperty("java.io.tmpdir"))(env => Utils.getLocalDir(env.conf))
    )
    val place = told(new File(root))(Files.createTempDirectory(Paths.get(root), "lamina-spill-").toFile)
    val tables = new BlockBasedTableConfig().setBlockCache(BlockCache.get).setCacheIndexAndFilterBlocks(true)
      .setFilterPolicy(LocalDatabase.filter)
    val options = new Options().setCreateIfMissing(true).setTableFormatConfig(tables)
      .setWriteBufferSize(WriteBufferBytes).setArenaBlockSize(ArenaBytes).setWriteBufferManager(
        BlockCache.writeBuffers
      ).setCompressionType(CompressionType.LZ4_COMPRESSION).setMaxOpenFiles(-1)
      .setListeners(Seq[AbstractEventListener](withoutRecovery).asJava)
    try new SpillDatabase(place, options, told(place)(RocksDB.open(options, place.getPath)))
    catch {
      case error: Throwable =>
        options.close()
        LocalDatabase.remove(place)
        throw error
    }
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
