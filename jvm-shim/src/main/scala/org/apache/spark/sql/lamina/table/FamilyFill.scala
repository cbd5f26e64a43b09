package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * Builds a column family from the entries of a version, newest first: the first entry of a key decides, and an append
 * waits for what is below it. Outside of transactions, while nobody reads.
 *
 * With a state below only what came after it is filled in: a delete leaves a tombstone, and an append is joined to the value
 * below at the end. Keys that no entry is of stay unknown, so the counts are not known either.
 *
 * @param keys those of an ordered family that is not layered, or null
 * @param layer of a layered table, or null
 */
private[lamina] final class FamilyFill private[table] (
    id: Int,
    index: HashIndex,
    lists: ListBuffers,
    keys: OrderedKeys,
    counts: RowCounts,
    pool: PagePool,
    layer: Layer
) {
  import HashIndex.rowOf

  /** Rows to settle at the end, as first of each pair: held, superseded or removed. */
  private val unsettled = new LongLog(pool)

  def bytes: Long = unsettled.bytes

  /** The word at which the search for a key begins. */
  def slot(hash: Long): Long = index.first(hash)

  /** The next entry, with the hash of its key. */
  def add(
      hash: Long,
      op: Byte,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    index.ensure(hash)
    if (op != Ops.Put) unsettled.ensure()
    val word = index.find(hash, keyBase, keyOffset, keyLength)
    if (word == 0L) {
      val flags = if (op == Ops.Append) Rows.Held else if (op == Ops.Delete) Rows.Removed else 0
      val length = if (op == Ops.Delete) 0 else valueLength
      val row = lists.create(keyBase, keyOffset, keyLength, length, flags)
      Platform.copyMemory(valueBase, valueOffset, null, Rows.valueAddress(row), length)
      if (layer != null) Rows.setLabel(row, layer.labels.current)
      index.insert(hash, row, removed = op == Ops.Delete)
      if (op != Ops.Put) unsettled.add(row, 0L)
      if (keys != null && op != Ops.Delete) keys.add(keyBase, keyOffset, keyLength)
      if (op != Ops.Delete) counts.add(row)
    } else if (Rows.has(rowOf(word), Rows.Held)) {
      val newer = rowOf(word)
      if (op == Ops.Delete) Rows.clearFlags(newer, Rows.Held)
      else {
        val tail = Rows.valueLength(newer)
        val length = Rows.clamp(valueLength.toLong + tail)
        val row = lists.create(
          null,
          Rows.keyAddress(newer),
          keyLength,
          length,
          if (op == Ops.Append) Rows.Held else 0
        )
        val target = Rows.valueAddress(row)
        Platform.copyMemory(valueBase, valueOffset, null, target, valueLength)
        Platform.copyMemory(null, Rows.valueAddress(newer), null, target + valueLength, tail)
        if (layer != null) Rows.setLabel(row, layer.labels.current)
        counts.remove(newer)
        index.update(row, removed = false)
        counts.add(row)
        Rows.clearFlags(newer, Rows.Held)
        Rows.setFlags(newer, Rows.Superseded)
        if (op == Ops.Append) unsettled.add(row, 0L)
      }
    }
  }

  private[table] def end(): Unit = {
    var i = 0
    while (i < unsettled.size) {
      val row = unsettled.first(i)
      if (Rows.has(row, Rows.Superseded)) lists.free(row)
      else if (Rows.has(row, Rows.Removed)) {
        index.findKeyOf(row)
        if (hasBelow) {
          val tombstone = lists.tombstone(null, Rows.keyAddress(row), Rows.keyLength(row), flags = 0)
          Rows.setLabel(tombstone, layer.labels.current)
          index.update(tombstone, removed = false)
        } else index.erase()
        lists.free(row)
      } else {
        val joins = hasBelow && Rows.has(row, Rows.Held)
        Rows.clearFlags(row, Rows.Held)
        if (joins) join(row)
      }
      i += 1
    }
    unsettled.close()
  }

  private def hasBelow: Boolean = layer != null && layer.below != null

  /** Has a row that was only appended to go on from what is below. */
  private def join(row: Long): Unit = {
    val key = Rows.keyAddress(row)
    val keyLength = Rows.keyLength(row)
    val value = layer.below.get(id, null, key, keyLength)
    if (value != null) {
      val tail = Rows.valueLength(row)
      val joined = lists.create(null, key, keyLength, Rows.clamp(value.length.toLong + tail), 0)
      val target = Rows.valueAddress(joined)
      Platform.copyMemory(value, Platform.BYTE_ARRAY_OFFSET.toLong, null, target, value.length)
      Platform.copyMemory(null, Rows.valueAddress(row), null, target + value.length, tail)
      Rows.setLabel(joined, layer.labels.current)
      index.findKeyOf(row)
      index.update(joined, removed = false)
      lists.free(row)
    }
  }

  private[table] def close(): Unit = unsettled.close()
}
