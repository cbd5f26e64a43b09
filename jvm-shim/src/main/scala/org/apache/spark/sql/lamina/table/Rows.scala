package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * Layout of a row in a page.
 * {{{
 * header  8 bytes   flags 8 bits | value length 28 bits | key length 28 bits
 * list    8 bytes   only with flag List: base length 32 bits | capacity of the value 32 bits
 * key               padded to 8 bytes
 * value             padded to 8 bytes
 * }}}
 * A row is named by its address, a multiple of 8. Key and value start at multiples of 8, so that an UnsafeRow can point at them.
 */
object Rows {
  val MaxLength: Int = (1 << 28) - 16

  /** Written by the open transaction. */
  private[table] val Own = 1

  /** Handed out while own: its bytes do not change any more, appended ones excepted. */
  private[table] val Read = 2

  /** Own, and the key is absent in the base version. */
  private[table] val Fresh = 4

  /** Replaced, or put again after a removal, within the open transaction. While filling: an append that a longer row replaces. */
  private[table] val Superseded = 8

  /** Has the list word. */
  private[table] val List = 16

  /** Own, and differs from the base row, which may be absent, only by appended elements. */
  private[table] val Appended = 32

  /** Between transactions: kept for the undo log. While filling: an append that waits for what is below it. */
  private[table] val Held = 64

  /** Removed by the open transaction. While filling: a delete that hides older entries. */
  private[table] val Removed = 128

  /** What no other row has: read without being own. The space may be used again. */
  private val DeadFlags = Read | Fresh
  private val LiveOrDead = Own | Read | Fresh

  private val LengthMask = (1L << 28) - 1
  private val FlagShift = 56

  def keyLength(row: Long): Int = (Platform.getLong(null, row) & LengthMask).toInt

  def valueLength(row: Long): Int = ((Platform.getLong(null, row) >>> 28) & LengthMask).toInt

  def keyAddress(row: Long): Long = row + prefix(Platform.getLong(null, row))

  def valueAddress(row: Long): Long = {
    val header = Platform.getLong(null, row)
    row + prefix(header) + padded((header & LengthMask).toInt)
  }

  private def prefix(header: Long): Long = if ((header & (List.toLong << FlagShift)) != 0) 16L else 8L

  private[table] def padded(length: Int): Long = (length + 7L) & ~7L

  private[table] def flags(row: Long): Int = (Platform.getLong(null, row) >>> FlagShift).toInt

  private[table] def has(row: Long, flag: Int): Boolean = (flags(row) & flag) != 0

  private[table] def setFlags(row: Long, set: Int): Unit =
    Platform.putLong(null, row, Platform.getLong(null, row) | (set.toLong << FlagShift))

  private[table] def clearFlags(row: Long, clear: Int): Unit =
    Platform.putLong(null, row, Platform.getLong(null, row) & ~(clear.toLong << FlagShift))

  private[table] def isDead(row: Long): Boolean = (flags(row) & LiveOrDead) == DeadFlags

  /** Gives a row's space up; it keeps its size. */
  private[table] def markDead(row: Long): Unit = {
    val header = Platform.getLong(null, row)
    val flags = ((header >>> FlagShift).toInt & List) | DeadFlags
    Platform.putLong(null, row, (header & ~(0xffL << FlagShift)) | (flags.toLong << FlagShift))
  }

  /** Makes `bytes`, a multiple of 8, one dead row. */
  private[table] def writeDead(row: Long, bytes: Long): Unit = writeHeader(row, 0, (bytes - 8L).toInt, DeadFlags)

  private[table] def setValueLength(row: Long, length: Int): Unit = {
    val header = Platform.getLong(null, row)
    Platform.putLong(null, row, (header & ~(LengthMask << 28)) | (length.toLong << 28))
  }

  private[table] def writeHeader(row: Long, keyLength: Int, valueLength: Int, flags: Int): Unit =
    Platform.putLong(null, row, (flags.toLong << FlagShift) | (valueLength.toLong << 28) | keyLength)

  private[table] def listCapacity(row: Long): Int = Platform.getInt(null, row + 8)

  private[table] def listBase(row: Long): Int = Platform.getInt(null, row + 12)

  private[table] def writeList(row: Long, capacity: Int, base: Int): Unit = {
    Platform.putInt(null, row + 8, capacity)
    Platform.putInt(null, row + 12, base)
  }

  /** Bytes of a row to come, header included. */
  private[table] def size(keyLength: Int, capacity: Int, list: Boolean): Long =
    (if (list) 16L else 8L) + padded(keyLength) + padded(capacity)

  /** Bytes that a row takes in its page. */
  private[table] def size(row: Long): Long = {
    val header = Platform.getLong(null, row)
    val list = (header & (List.toLong << FlagShift)) != 0
    val capacity = if (list) listCapacity(row) else ((header >>> 28) & LengthMask).toInt
    size((header & LengthMask).toInt, capacity, list)
  }

  private[table] def clamp(length: Long): Int = math.min(length, Int.MaxValue.toLong).toInt

  /** Key and value bytes, without header and padding. */
  private[table] def keyValueBytes(row: Long): Long = {
    val header = Platform.getLong(null, row)
    (header & LengthMask) + ((header >>> 28) & LengthMask)
  }
}
