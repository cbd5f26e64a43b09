package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/** Walks rows of a column family. Updates meanwhile are allowed and may or may not be seen. */
abstract class RowCursor {

  /** Whether the next row comes from the version that the open transaction is based on. */
  var base: Boolean

  /** The address of the next row, or 0 at the end. */
  def next(): Long
}

/** All rows, in the order of the index. */
private[table] final class ScanCursor(family: FamilyTable, index: HashIndex, override var base: Boolean)
    extends RowCursor {
  private val buffer = new HashIndex.WordBuffer
  private val wasEmpty = !base && family.rows == 0
  private var started = false
  private var prefix = 0L
  private var position = 0

  override def next(): Long = {
    while (true) {
      while (position < buffer.count) {
        val word = buffer.words(position)
        position += 1
        if (word != 0L && word != HashIndex.Tombstone) {
          val row = family.seen(word, base)
          if (row != 0L) return row
        }
      }
      if (wasEmpty || (started && prefix == 0L)) return 0L
      started = true
      prefix = index.copySegment(prefix, buffer)
      position = 0
    }
    0L
  }
}

/** Rows with from ≤ key < until in unsigned byte order; null leaves a side open. */
private[table] final class RangeCursor(
    family: FamilyTable,
    keys: OrderedKeys,
    from: Array[Byte],
    until: Array[Byte],
    override var base: Boolean
) extends RowCursor {
  private val buffer = new OrderedKeys.KeyBuffer
  private var more = keys.copyFrom(from, above = false, buffer)

  override def next(): Long = {
    while (more) {
      while (!buffer.isEmpty) {
        val key = buffer.next()
        val offset = Platform.BYTE_ARRAY_OFFSET.toLong
        if (until != null && KeyOrder.compare(key, offset, key.length, until, offset, until.length) >= 0) {
          more = false
          return 0L
        }
        val row = if (base) family.getBase(key, offset, key.length) else family.get(key, offset, key.length)
        if (buffer.isEmpty) more = keys.copyFrom(key, above = true, buffer)
        if (row != 0L) return row
      }
      if (more && buffer.isEmpty) more = false
    }
    0L
  }
}
