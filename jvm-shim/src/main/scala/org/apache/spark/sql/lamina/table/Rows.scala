package org.apache.spark.sql.lamina.table

import java.lang.invoke.VarHandle

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/**
 * Layout of a row in a page.
 * {{{
 * header  8 bytes   flags 8 bits | value length 27 bits | label 2 bits | key length 27 bits
 * list    8 bytes   only with flag List: base length 27 bits | kind 2 bits
 *         8 bytes   of a view: address of its buffer; of a buffer: end 32 bits | number of its views 32 bits
 * key               padded to 8 bytes; not in a view
 * value             padded to 8 bytes; not in a view
 * }}}
 * A row is named by its address, a multiple of 8. Key and value start at multiples of 8, so that an UnsafeRow can point at them.
 *
 * A view is a row whose key and value lie in a buffer, where other versions of the row have theirs too ([[ListBuffers]]).
 * A buffer is no row of its own: its value length is what it has room for.
 *
 * A tombstone stands for a key that is absent and may be below the table ([[Below]]). It has a key, and no value. The label
 * says, of a row of a table with something below, since when it is other than there ([[Labels]]).
 */
object Rows {

  /** Of a key, and of a value. */
  val MaxLength: Int = (1 << 27) - 16

  /** Refuses a row that is above the limit. Its value may be one that no array can hold. */
  def requireFits(keyLength: Int, valueLength: Long): Unit =
    if (keyLength > MaxLength || valueLength > MaxLength) {
      throw new LaminaError(
        LaminaError.RowTooLarge,
        s"a row with a key of $keyLength bytes and a value of $valueLength bytes is above the limit of $MaxLength bytes for each; " +
          "keep large objects outside of the state and a reference to them in it"
      )
    }

  /** Written by the open transaction. */
  private[table] val Own = 1

  /** Handed out while own: its bytes do not change any more, appended ones excepted. */
  private[table] val Read = 2

  /** Own, and the key is absent in the base version. */
  private[table] val Fresh = 4

  /** Replaced, or put again after a removal, within the open transaction. While filling: an append that a longer row replaces. */
  private[table] val Superseded = 8

  /** Has a list word. */
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

  private val LengthMask = (1L << 27) - 1
  private val LabelShift = 27
  private val ValueShift = 29
  private val LabelMask = 3L << LabelShift
  private val FlagShift = 56
  private val ListBit = List.toLong << FlagShift

  // Kinds of rows with a list word. A short list has key and value of its own.
  private val Short = 0L
  private val View = 1L
  private val Buffer = 2L
  private val Tombstone = 3L
  private val KindBits = 2

  private[table] val HeaderBytes = 8L
  private[table] val ShortHeaderBytes = 16L
  private[table] val BufferHeaderBytes = 24L
  private[table] val ViewBytes = 24L

  /** Whether the open transaction wrote a row. */
  def isOwn(row: Long): Boolean = has(row, Own)

  def keyLength(row: Long): Int = (Platform.getLong(null, row) & LengthMask).toInt

  def valueLength(row: Long): Int = ((Platform.getLong(null, row) >>> ValueShift) & LengthMask).toInt

  def keyAddress(row: Long): Long = keyAddress(row, Platform.getLong(null, row))

  def valueAddress(row: Long): Long = {
    val header = Platform.getLong(null, row)
    keyAddress(row, header) + padded((header & LengthMask).toInt)
  }

  private def keyAddress(row: Long, header: Long): Long =
    if ((header & ListBit) == 0) row + HeaderBytes
    else {
      val listKind = kind(row)
      if (listKind == View) buffer(row) + BufferHeaderBytes
      else row + (if (listKind == Buffer) BufferHeaderBytes else ShortHeaderBytes)
    }

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
    Platform.putLong(null, row, (header & ~(LengthMask << ValueShift)) | (length.toLong << ValueShift))
  }

  private[table] def writeHeader(row: Long, keyLength: Int, valueLength: Int, flags: Int): Unit =
    Platform.putLong(null, row, (flags.toLong << FlagShift) | (valueLength.toLong << ValueShift) | keyLength)

  private def kind(row: Long): Long = Platform.getLong(null, row + 8) & ((1L << KindBits) - 1)

  private def isKind(row: Long, wanted: Long): Boolean = has(row, List) && kind(row) == wanted

  private def writeList(row: Long, kind: Long, base: Int): Unit =
    Platform.putLong(null, row + 8, (base.toLong << KindBits) | kind)

  /** Of an own row that differs from its base row only by appended elements: the length of that one. */
  private[table] def listBase(row: Long): Int =
    if (has(row, List)) ((Platform.getLong(null, row + 8) >>> KindBits) & LengthMask).toInt else 0

  private[table] def writeShort(row: Long, base: Int): Unit = writeList(row, Short, base)

  private[table] def isView(row: Long): Boolean = isKind(row, View)

  private[table] def writeView(row: Long, base: Int, buffer: Long): Unit = {
    writeList(row, View, base)
    Platform.putLong(null, row + 16, buffer)
  }

  private[table] def buffer(view: Long): Long = Platform.getLong(null, view + 16)

  /** Points a view at a copy of its buffer. Who reads the view meanwhile, without the lock, finds one or the other. */
  private[table] def setBuffer(view: Long, buffer: Long): Unit = {
    VarHandle.releaseFence()
    Platform.putLong(null, view + 16, buffer)
  }

  private[table] def isTombstone(row: Long): Boolean = isKind(row, Tombstone)

  private[table] def writeTombstone(row: Long): Unit = writeList(row, Tombstone, base = 0)

  private[table] def label(row: Long): Int = ((Platform.getLong(null, row) & LabelMask) >>> LabelShift).toInt

  private[table] def setLabel(row: Long, label: Int): Unit =
    Platform.putLong(null, row, (Platform.getLong(null, row) & ~LabelMask) | (label.toLong << LabelShift))

  private[table] def isBuffer(row: Long): Boolean = isKind(row, Buffer)

  private[table] def writeBuffer(row: Long, end: Int, views: Int): Unit = {
    writeList(row, Buffer, 0)
    setEnd(row, end)
    setViews(row, views)
  }

  /** Where the elements end that a view may still have: an append may write what lies behind. */
  private[table] def end(buffer: Long): Int = Platform.getInt(null, buffer + 16)

  private[table] def setEnd(buffer: Long, end: Int): Unit = Platform.putInt(null, buffer + 16, end)

  private[table] def views(buffer: Long): Int = Platform.getInt(null, buffer + 20)

  private[table] def setViews(buffer: Long, views: Int): Unit = Platform.putInt(null, buffer + 20, views)

  /** Bytes that a row takes in its page. */
  private[table] def size(row: Long): Long = {
    val header = Platform.getLong(null, row)
    val bytes = padded((header & LengthMask).toInt) + padded(((header >>> ValueShift) & LengthMask).toInt)
    if ((header & ListBit) == 0) HeaderBytes + bytes
    else {
      val listKind = kind(row)
      if (listKind == View) ViewBytes
      else bytes + (if (listKind == Buffer) BufferHeaderBytes else ShortHeaderBytes)
    }
  }

  private[table] def clamp(length: Long): Int = math.min(length, Int.MaxValue.toLong).toInt

  /** Key and value bytes, without header and padding. */
  private[table] def keyValueBytes(row: Long): Long = {
    val header = Platform.getLong(null, row)
    (header & LengthMask) + ((header >>> ValueShift) & LengthMask)
  }
}
