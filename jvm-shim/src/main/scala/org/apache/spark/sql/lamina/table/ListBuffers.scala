package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * The lists of one column family that are appended to. An append writes behind the elements that are there, and the row of
 * the new version is a view: 24 bytes that say how much of the buffer is its value. So versions share their elements.
 *
 *  1. The views of a buffer are of one key, and the elements of a shorter one are the first ones of a longer one.
 *  2. Only a view that ends where the buffer ends is appended to in place. Others, whose tail a transaction wrote that was
 *     taken back since, get a new buffer.
 *  3. No byte before the end changes. The end goes back when a view is freed that reaches up to it: nobody reads that tail any more.
 *  4. A buffer that is full is left for a larger one. What the open transaction and its base have of the list moves there, so
 *     that no version needs the old one; who has read from that still may, until the transaction's readers have ended.
 *  5. A buffer is freed with its last view, and after it has rested where it was left.
 */
private[table] final class ListBuffers(pages: FamilyPages, pool: PagePool) {
  import ListBuffers._

  /** Buffers that the open transaction left, as first of each pair. Each counts as a view. */
  private var left = new LongLog(pool)

  def bytes: Long = left.bytes

  /** Bytes of the buffers that the open transaction left. */
  var leftBytes = 0L

  /** Appends to an own row in place; false where it has no room. */
  def extend(row: Long, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Boolean =
    hasRoom(row, valueLength) && {
      // Elements already handed out stay where they are; readers know how many they saw.
      write(Rows.buffer(row), Rows.valueLength(row), valueBase, valueOffset, valueLength)
      Rows.setValueLength(row, Rows.valueLength(row) + valueLength)
      true
    }

  /** A new row of the elements of another one and more; `base` as in [[Rows.listBase]]. */
  def append(old: Long, base: Int, flags: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Long = {
    val keyLength = Rows.keyLength(old)
    val oldLength = Rows.valueLength(old)
    val length = Rows.clamp(oldLength.toLong + valueLength)
    if (hasRoom(old, valueLength)) {
      val row = newView(Rows.buffer(old), keyLength, length, base, flags)
      write(Rows.buffer(old), oldLength, valueBase, valueOffset, valueLength)
      row
    } else if (length < ShortBytes && !Rows.has(old, Rows.Own)) {
      val key = Rows.keyAddress(old)
      val row = pages.append(null, key, keyLength, length, flags | Rows.List, Rows.ShortHeaderBytes)
      Rows.writeShort(row, base)
      Platform.copyMemory(null, Rows.valueAddress(old), null, Rows.valueAddress(row), oldLength)
      Platform.copyMemory(valueBase, valueOffset, null, Rows.valueAddress(row) + oldLength, valueLength)
      row
    } else {
      left.ensure()
      val buffer = newBuffer(old, capacityFor(keyLength, length), oldLength)
      val row =
        try newView(buffer, keyLength, length, base, flags)
        catch { case error: Throwable => pages.free(buffer); throw error }
      write(buffer, oldLength, valueBase, valueOffset, valueLength)
      row
    }
  }

  /** Points the views that a new one continues, the row before it and so on, at its buffer, which has their elements, too. */
  def share(row: Long, before: Long, undo: LongLog): Unit = if (Rows.isView(row) && Rows.isView(before)) {
    val (old, buffer) = (Rows.buffer(before), Rows.buffer(row))
    if (old != buffer) {
      left.add(old, 0L)
      leftBytes += Rows.size(old)
      Rows.setViews(old, Rows.views(old) + 1)
      var view = before
      while (isViewOf(view, old)) {
        Rows.setViews(old, Rows.views(old) - 1)
        Rows.setViews(buffer, Rows.views(buffer) + 1)
        Rows.setBuffer(view, buffer)
        view = if (Rows.has(view, Rows.Own)) undo.first(Rows.undoEntry(view)) else 0L
      }
    }
  }

  /** The transaction has ended: what it left waits for its readers. */
  def rest(family: FamilyTable, resting: Resting): Unit = {
    resting.add(family, left, newRows = false)
    left = new LongLog(pool)
    leftBytes = 0L
  }

  def close(): Unit = left.close()

  /** The space of a row, or of a buffer that was left, may be used again, and that of a row's buffer after its last view. */
  def free(row: Long): Unit =
    if (Rows.isBuffer(row)) leave(row)
    else {
      if (Rows.isView(row)) {
        val buffer = Rows.buffer(row)
        if (!leave(buffer) && Rows.end(buffer) == Rows.valueLength(row)) Rows.setEnd(buffer, Rows.listBase(row))
      }
      pages.free(row)
    }

  /** A buffer has one view less; whether that was the last. */
  private def leave(buffer: Long): Boolean = {
    Rows.setViews(buffer, Rows.views(buffer) - 1)
    val isLast = Rows.views(buffer) == 0
    if (isLast) pages.free(buffer)
    isLast
  }

  /** Whether an undo entry's state before is a view of a buffer. The lowest bit says that it had been removed. */
  private def isViewOf(before: Long, buffer: Long): Boolean =
    before != 0L && (before & 1L) == 0L && Rows.isView(before) && Rows.buffer(before) == buffer

  /** A copy of a row, or of a buffer, that is to take its place. */
  def copy(row: Long): Long =
    if (Rows.isView(row))
      view(Rows.buffer(row), Rows.keyLength(row), Rows.valueLength(row), Rows.listBase(row), Rows.flags(row))
    else if (Rows.isBuffer(row)) {
      val copied = newBuffer(row, Rows.valueLength(row), Rows.end(row))
      Rows.setViews(copied, Rows.views(row))
      copied
    } else {
      val key = Rows.keyAddress(row)
      val length = Rows.valueLength(row)
      val copied = pages.append(null, key, Rows.keyLength(row), length, Rows.flags(row) & ~Rows.List)
      Platform.copyMemory(null, Rows.valueAddress(row), null, Rows.valueAddress(copied), length)
      copied
    }

  /** Points a view at its buffer where that was moved. */
  def follow(row: Long, moved: MovedRows): Unit = if (Rows.isView(row)) {
    val target = moved.target(Rows.buffer(row))
    if (target != Rows.buffer(row)) Rows.setBuffer(row, target)
  }

  private def hasRoom(row: Long, bytes: Int): Boolean = Rows.isView(row) && {
    val buffer = Rows.buffer(row)
    val length = Rows.valueLength(row)
    Rows.end(buffer) == length && Rows.valueLength(buffer) - length >= bytes
  }

  private def newView(buffer: Long, keyLength: Int, length: Int, base: Int, flags: Int): Long = {
    val row = view(buffer, keyLength, length, base, flags)
    Rows.setViews(buffer, Rows.views(buffer) + 1)
    row
  }

  private def view(buffer: Long, keyLength: Int, length: Int, base: Int, flags: Int): Long = {
    val row = pages.take(Rows.ViewBytes)
    Rows.writeHeader(row, keyLength, length, flags | Rows.List)
    Rows.writeView(row, base, buffer)
    row
  }

  /** A buffer without views, with the key of a row or buffer and the first bytes of its value. */
  private def newBuffer(from: Long, capacity: Int, bytes: Int): Long = {
    val key = Rows.keyAddress(from)
    val buffer = pages.append(null, key, Rows.keyLength(from), capacity, Rows.List, Rows.BufferHeaderBytes)
    Rows.writeBuffer(buffer, bytes, views = 0)
    Platform.copyMemory(null, Rows.valueAddress(from), null, Rows.valueAddress(buffer), bytes)
    buffer
  }

  /** Writes elements at a buffer's end. */
  private def write(buffer: Long, at: Int, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Unit = {
    Platform.copyMemory(valueBase, valueOffset, null, Rows.valueAddress(buffer) + at, valueLength)
    Rows.setEnd(buffer, at + valueLength)
  }
}

private[table] object ListBuffers {

  /** A shorter list of another version is copied instead: a view and the head of a buffer would take too large a part of it. */
  val ShortBytes = 256

  /**
   * Room for half as much again where the list is short, else for an eighth, and for what else its pages have where it has
   * some of its own. Above what a row may have only where the list itself is.
   */
  def capacityFor(keyLength: Int, length: Int): Int = {
    val around = Rows.BufferHeaderBytes + Rows.padded(keyLength)
    val spare = length / (if (length < ShortBytes) 2 else 8)
    val wanted = around + Rows.padded(Rows.clamp(length.toLong + spare))
    math.max(length.toLong, math.min(FamilyPages.roomFor(wanted) - around, Rows.MaxLength.toLong)).toInt
  }
}
