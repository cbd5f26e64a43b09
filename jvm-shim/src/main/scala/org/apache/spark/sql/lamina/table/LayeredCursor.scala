package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * Rows of a layered column family with from ≤ key < until in unsigned byte order; null leaves a side open.
 *
 * It goes by keys, those that may differ from the state below and those that are there, and looks each one up when it comes to it: so
 * rows that are read, written, forgotten, or come below meanwhile are neither passed over nor seen twice. A row that is not in the
 * table is put into `transient`, which cursors share that are used under the lock: it is good until one of them goes on.
 */
private[table] final class LayeredCursor(
    family: FamilyTable,
    labelled: LabelledKeys,
    layer: Layer,
    transient: TransientRow,
    from: Array[Byte],
    until: Array[Byte],
    override var base: Boolean,
    passesNew: Boolean
) extends FamilyCursor(family, passesNew) {
  import LayeredCursor._

  /** The last key that was looked up, or null. */
  private var passed: Array[Byte] = _
  private var keys: OrderedKeys = _
  private var place = 0L
  private var changes = 0L

  /** The state that `entries` were read from, and how many of them have been passed. */
  private var below: Below = _
  private val entries = new BelowEntries
  private var position = 0
  private var ended = !base && family.rows == 0

  override def next(): Long = {
    var row = 0L
    while (row == 0L && !ended) {
      val own = ownKey()
      val theirs = belowKey()
      val order =
        if (own == 0L) 1 else if (theirs == null) -1 else compare(own, theirs)
      if (own == 0L && theirs == null) ended = true
      else {
        val key = if (order <= 0) copied(own) else theirs
        if (until != null && KeyOrder.compare(key, Offset, key.length, until, Offset, until.length) >= 0) ended = true
        else {
          if (!base) learn()
          row =
            if (!base && isNew(key, Offset, key.length)) 0L
            else look(key, if (order >= 0) entries.values(position) else null)
          passed = key
          if (order <= 0) place = keys.after(place)
          if (order >= 0) position += 1
        }
      }
    }
    row
  }

  override private[table] def hasPassed(key: Long, length: Int): Boolean =
    passed != null && KeyOrder.compare(null, key, length, passed, Offset, passed.length) <= 0

  /** The row of a key that differs from the state below, or is there with a value. */
  private def look(key: Array[Byte], value: Array[Byte]): Long = {
    val held = family.held(key, Offset, key.length, base)
    if (held != FamilyTable.Unknown) held
    else {
      val there =
        if (value != null || source == null) value else source.get(family.id, key, Offset, key.length)
      if (there == null) 0L else transient.of(key, Offset, key.length, there)
    }
  }

  /** The address of the next key that differs, or 0. */
  private def ownKey(): Long = {
    val all = labelled.all
    if ((all ne keys) || keys.changes != changes) {
      keys = all
      changes = keys.changes
      place =
        if (passed != null) keys.find(passed, Offset, passed.length, above = true)
        else if (from != null) keys.find(from, Offset, from.length, above = false)
        else keys.first
    }
    keys.keyAt(place)
  }

  /** What has the keys that the table does not know. */
  private def source: Below = if (base) layer.below else layer.seen

  /** The next key of the state below, or null. */
  private def belowKey(): Array[Byte] = {
    if (source ne below) {
      read()
      below = source
    } else if (position == entries.count && !entries.isLast) read()
    if (position < entries.count) entries.keys(position) else null
  }

  private def read(): Unit = {
    entries.clear()
    position = 0
    if (source == null) entries.isLast = true
    else {
      // what a read that failed has left is not gone on with
      below = null
      source.read(family.id, if (passed != null) passed else from, above = passed != null, until, entries)
      below = source
    }
  }
}

private object LayeredCursor {
  private val Offset = Platform.BYTE_ARRAY_OFFSET.toLong

  private def copied(key: Long): Array[Byte] = {
    val copy = new Array[Byte](Platform.getInt(null, key - 4))
    Platform.copyMemory(null, key, copy, Offset, copy.length)
    copy
  }

  private def compare(own: Long, theirs: Array[Byte]): Int =
    KeyOrder.compare(null, own, Platform.getInt(null, own - 4), theirs, Offset, theirs.length)
}
