package org.apache.spark.sql.lamina

import java.io.{File, IOException}
import java.nio.ByteBuffer
import java.nio.file.Files
import java.nio.file.attribute.UserDefinedFileAttributeView

import org.rocksdb.{BloomFilter, Options, ReadOptions, RocksDB, RocksIterator}

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.BelowEntries
import org.apache.spark.unsafe.Platform

/** Rows of column families in a database of RocksDB, in a local directory that goes when it is closed. */
private[lamina] abstract class LocalDatabase(directory: File, options: Options, db: RocksDB) {
  import LocalDatabase._

  private val reading = new ReadOptions()
  @volatile private var failed = false

  /** Whether something that was asked of RocksDB has failed. */
  protected def hasFailed: Boolean = failed

  /** Runs work on RocksDB; its errors become those of this database. */
  protected def told[A](work: => A): A

  /** As `told`; an error of RocksDB's, and no other one, is remembered: nothing is wrong with files where memory is short. */
  protected def noted[A](work: => A): A =
    try told(work)
    catch {
      case error: LaminaError =>
        failed = true
        throw error
    }

  def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] =
    noted(db.get(reading, keyOf(family, keyBase, keyOffset, keyLength)))

  /** As `Below.read` says. */
  def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit =
    noted(LocalDatabase.read(db, reading, family, from, above, until, into))

  protected def release(): Unit = {
    db.close()
    reading.close()
    options.close()
    remove(directory)
  }
}

private[lamina] object LocalDatabase {
  private val FamilyBytes = 2

  /** Extended attributes of the user. */
  private val Mark = "lamina.verified"
  private val Distrust = "lamina.distrusted"

  /** Without one the filters in the tables are not read. */
  lazy val filter = new BloomFilter(10, false)

  /** What `Below.read` says, of a database. */
  private def read(
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

  /**
   * Takes the marks away by which the engine knows that files were verified, and says that they are distrusted: it verifies them before
   * they are used again, under whatever name.
   */
  def distrust(directory: File): Unit =
    Option(directory.listFiles).toSeq.flatten.foreach { file =>
      Option(Files.getFileAttributeView(file.toPath, classOf[UserDefinedFileAttributeView])).foreach { attributes =>
        quietly(attributes.delete(Mark))
        quietly(attributes.write(Distrust, ByteBuffer.wrap(Array('1'.toByte))))
      }
    }

  private def quietly(work: => Any): Unit =
    try {
      work
      ()
    } catch {
      // there is no such mark, or there are none in this file system
      case _: IOException =>
    }

  /** Removes a directory of files, without a process, since threads that are interrupted do it, too. */
  def remove(directory: File): Unit = {
    Option(directory.listFiles).foreach(_.foreach(_.delete()))
    directory.delete()
    ()
  }
}
