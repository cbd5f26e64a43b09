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
 *  4. A buffer that is full is left for a larger one. An own view that was not handed out moves there, and where it was the
 *     only one its old buffer is freed at once. Any other buffer that is left rests until the transaction's readers have ended.
 *  5. The view that a transaction found stays where it is until the commit, as it may have been handed out. Then it moves to the
 *     buffer of the view that continues it, so that no version needs the old one.
 *  6. A buffer is freed with its last view, and after it has rested where it was left.
 */
private[table] final class ListBuffers(pages: FamilyPages, pool: PagePool, multiValue: Boolean) {
  import ListBuffers._

  /** Buffers that the open transaction left and somebody may read, as first of each pair. Each counts as a view. */
  private var left = new LongLog(pool)

  def bytes: Long = left.bytes

  /** Bytes of all buffers that the open transaction left. */
  var leftBytes = 0L

  /**
   * A row whose value is the caller's to fill: a view of a buffer without room for more where it is a list that is long.
   *
   * @param base as in [[Rows.listBase]]
   */
  def create(keyBase: AnyRef, keyOffset: Long, keyLength: Int, valueLength: Int, flags: Int, base: Int = 0): Long =
    if (base > 0 && valueLength < LongBytes) {
      val row = pages.append(keyBase, keyOffset, keyLength, valueLength, flags | Rows.List, Rows.ShortHeaderBytes)
      Rows.writeShort(row, base)
      row
    } else if (!multiValue || valueLength < LongBytes) pages.append(keyBase, keyOffset, keyLength, valueLength, flags)
    else {
      val buffer = newBuffer(keyBase, keyOffset, keyLength, capacityFor(keyLength, valueLength, spare = 0))
      Rows.setEnd(buffer, valueLength)
      firstView(buffer, keyLength, valueLength, base, flags)
    }

  /** A row that says that a key is absent. */
  def tombstone(keyBase: AnyRef, keyOffset: Long, keyLength: Int, flags: Int): Long = {
    val row = pages.append(keyBase, keyOffset, keyLength, 0, flags | Rows.List, Rows.ShortHeaderBytes)
    Rows.writeTombstone(row)
    row
  }

  /** Appends to an own row without making another one; false where that is not possible. */
  def extend(row: Long, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Boolean = {
    val oldLength = Rows.valueLength(row)
    val length = Rows.clamp(oldLength.toLong + valueLength)
    val isRoom = hasRoom(row, valueLength) || canMove(row) && {
      left.ensure()
      move(row, copyOf(row, capacityFor(Rows.keyLength(row), length), oldLength))
      true
    }
    if (isRoom) {
      // Elements already handed out stay where they are; readers know how many they saw.
      write(Rows.buffer(row), oldLength, valueBase, valueOffset, valueLength)
      Rows.setValueLength(row, length)
    }
    isRoom
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
      val buffer = copyOf(old, capacityFor(keyLength, length), oldLength)
      val row = firstView(buffer, keyLength, length, base, flags)
      write(buffer, oldLength, valueBase, valueOffset, valueLength)
      if (Rows.isView(old)) {
        val full = Rows.buffer(old)
        Rows.setViews(full, Rows.views(full) + 1)
        leave(full)
      }
      row
    }
  }

  /** Whether an own view may go to another buffer: nobody knows it yet. */
  private def canMove(row: Long): Boolean =
    Rows.isView(row) && (Rows.flags(row) & (Rows.Own | Rows.Read)) == Rows.Own

  /** Has an own view go on in a buffer that has no other. Needs room in the log of those that were left. */
  private def move(row: Long, buffer: Long): Unit = {
    val old = Rows.buffer(row)
    Rows.setViews(buffer, 1)
    Rows.setBuffer(row, buffer)
    leave(old)
  }

  /** The open transaction goes on without a buffer and gives one view of it up, which it counts as while it rests. */
  private def leave(buffer: Long): Unit = {
    leftBytes += Rows.size(buffer)
    // The version before has a view where the transaction did not make the buffer.
    if (Rows.views(buffer) == 1) pages.free(buffer) else left.add(buffer, 0L)
  }

  /** Before a commit: views that others of the transaction continue move to the buffers of these, which have their elements too. */
  def share(undo: LongLog): Unit = if (!left.isEmpty) {
    var i = undo.size - 1
    while (i >= 0) {
      val (before, row) = (undo.first(i), undo.second(i))
      if (isContinued(before, row) && Rows.buffer(before) != Rows.buffer(row)) {
        val (old, buffer) = (Rows.buffer(before), Rows.buffer(row))
        Rows.setViews(old, Rows.views(old) - 1)
        Rows.setViews(buffer, Rows.views(buffer) + 1)
        Rows.setBuffer(before, buffer)
      }
      i -= 1
    }
  }

  /** Whether an entry of the undo log is an append of one view to another. The lowest bit says that the row had been removed. */
  private def isContinued(before: Long, row: Long): Boolean =
    before != 0L && row != 0L && (before & 1L) == 0L &&
      Rows.isView(before) && Rows.isView(row) && Rows.has(row, Rows.Appended)

  /** The transaction has ended: what it left waits for its readers. */
  def rest(family: FamilyTable, resting: Resting): Unit = {
    resting.add(family, left, newRows = false)
    left = new LongLog(pool)
    leftBytes = 0L
  }

  def close(): Unit = left.close()

  /** The space of a row, or of a buffer that was left, may be used again, and that of a row's buffer after its last view. */
  def free(row: Long): Unit =
    if (Rows.isBuffer(row)) giveUp(row)
    else {
      if (Rows.isView(row)) {
        val buffer = Rows.buffer(row)
        if (!giveUp(buffer) && Rows.end(buffer) == Rows.valueLength(row)) Rows.setEnd(buffer, Rows.listBase(row))
      }
      pages.free(row)
    }

  /** Does what has to be done before anything leads to a new row; where that fails, the row goes. */
  def freedUnless(row: Long)(work: => Unit): Unit = {
    var isDone = false
    try {
      work
      isDone = true
    } finally if (!isDone) free(row)
  }

  /** A buffer has one view less; whether that was the last. */
  private def giveUp(buffer: Long): Boolean = {
    Rows.setViews(buffer, Rows.views(buffer) - 1)
    val isLast = Rows.views(buffer) == 0
    if (isLast) pages.free(buffer)
    isLast
  }

  /** A copy of a row, or of a buffer, that is to take its place. */
  def copy(row: Long): Long = {
    val copied = copyWithoutLabel(row)
    Rows.setLabel(copied, Rows.label(row))
    copied
  }

  private def copyWithoutLabel(row: Long): Long =
    if (Rows.isView(row))
      view(Rows.buffer(row), Rows.keyLength(row), Rows.valueLength(row), Rows.listBase(row), Rows.flags(row))
    else if (Rows.isBuffer(row)) {
      val copied = copyOf(row, Rows.valueLength(row), Rows.end(row))
      Rows.setViews(copied, Rows.views(row))
      copied
    } else if (Rows.isTombstone(row)) tombstone(null, Rows.keyAddress(row), Rows.keyLength(row), Rows.flags(row))
    else {
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

  /** A view of a new buffer, which is freed where there is no memory for the view. */
  private def firstView(buffer: Long, keyLength: Int, length: Int, base: Int, flags: Int): Long =
    try newView(buffer, keyLength, length, base, flags)
    catch { case error: Throwable => pages.free(buffer); throw error }

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
  private def copyOf(from: Long, capacity: Int, bytes: Int): Long = {
    val buffer = newBuffer(null, Rows.keyAddress(from), Rows.keyLength(from), capacity)
    write(buffer, 0, null, Rows.valueAddress(from), bytes)
    buffer
  }

  private def newBuffer(keyBase: AnyRef, keyOffset: Long, keyLength: Int, capacity: Int): Long = {
    val buffer = pages.append(keyBase, keyOffset, keyLength, capacity, Rows.List, Rows.BufferHeaderBytes)
    Rows.writeBuffer(buffer, end = 0, views = 0)
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

  /** A list of this size has a buffer from the start, so that its first append leaves no row behind: a view takes 40 bytes more. */
  val LongBytes = 1024

  /**
   * Room for half as much again where the list is short, else for an eighth, and for what else its pages have where it has
   * some of its own. Above what a row may have only where the list itself is.
   */
  def capacityFor(keyLength: Int, length: Int): Int =
    capacityFor(keyLength, length, spare = length / (if (length < ShortBytes) 2 else 8))

  private def capacityFor(keyLength: Int, length: Int, spare: Int): Int = {
    val around = Rows.BufferHeaderBytes + Rows.padded(keyLength)
    val wanted = around + Rows.padded(Rows.clamp(length.toLong + spare))
    math.max(length.toLong, math.min(FamilyPages.roomFor(wanted) - around, Rows.MaxLength.toLong)).toInt
  }
}
