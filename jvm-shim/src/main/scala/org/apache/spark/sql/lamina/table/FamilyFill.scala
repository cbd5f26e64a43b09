package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * Builds a column family from the entries of a version, newest first: the first entry of a key decides, and an append
 * waits for what is below it. Outside of transactions, while nobody reads.
 *
 * @param keys ordered keys, or null
 */
private[lamina] final class FamilyFill private[table] (
    index: HashIndex,
    lists: ListBuffers,
    keys: OrderedKeys,
    counts: RowCounts,
    pool: PagePool
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
      index.insert(hash, row, removed = op == Ops.Delete)
      if (op != Ops.Put) unsettled.add(row, 0L)
      if (op != Ops.Delete) {
        if (keys != null) keys.add(keyBase, keyOffset, keyLength)
        counts.add(row)
      }
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
        index.erase()
        lists.free(row)
      } else Rows.clearFlags(row, Rows.Held)
      i += 1
    }
    unsettled.close()
  }

  private[table] def close(): Unit = unsettled.close()
}
