package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * What the open transaction changed in a layered column family, on its way to the local disk and back.
 *
 * A row that was put there is taken back in the table as by an abort: the table then has the base, and the disk what is other in the
 * transaction. A key that is changed again comes back first, so that all else finds an own row. So the transaction's state of a key
 * is that of its own row; else what is on the disk; else the base.
 */
private[table] final class FamilySpill(
    id: Int,
    index: HashIndex,
    lists: ListBuffers,
    keys: LabelledKeys,
    counts: RowCounts,
    layer: Layer
) {
  import HashIndex.rowOf

  private val baseCounts = new RowCounts
  private var isBegun = false
  private val transient = new TransientRow

  /** Whether some changes of the open transaction are on the disk. */
  def isOn: Boolean = layer.spill != null

  /** What is on the disk of a key that has no own row, as a row which is good until the next one; 0 where it was removed. */
  def find(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    val there = entry(keyBase, keyOffset, keyLength)
    if (there == null) FamilyTable.Unknown
    else {
      val value = Spilled.value(there)
      if (value == null) 0L
      else {
        val row = transient.of(keyBase, keyOffset, keyLength, value)
        Rows.setFlags(row, Rows.Own)
        row
      }
    }
  }

  def restTransient(): Unit = transient.rest()

  /** What is on the disk of a key, or null. */
  def entry(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] =
    layer.spill.get(id, keyBase, keyOffset, keyLength)

  /** Makes an own row of what is on the disk of a key, whose base row is in the table. Afterwards the slot is looked for anew. */
  def bringBack(
      entry: Array[Byte],
      hash: Long,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      undo: LongLog
  ): Unit = {
    index.ensure(hash)
    undo.ensure()
    val fresh = if (Spilled.isFresh(entry)) Rows.Fresh else 0
    val row = Spilled.op(entry) match {
      case Ops.Delete => lists.tombstone(keyBase, keyOffset, keyLength, Rows.Own | fresh)
      case op =>
        val flags = Rows.Own | fresh | (if (op == Ops.Append) Rows.Appended else 0)
        val length = Spilled.valueLength(entry)
        val made = lists.create(keyBase, keyOffset, keyLength, length, flags, Spilled.listBase(entry))
        Platform.copyMemory(entry, Spilled.valueOffset, null, Rows.valueAddress(made), length)
        made
    }
    Rows.setLabel(row, layer.labels.current)
    lists.freedUnless(row)(keys.add(row))
    val word = index.find(hash, keyBase, keyOffset, keyLength)
    if (word == 0L) index.insert(hash, row, removed = false) else index.update(row, removed = false)
    undo.add(if (word == 0L) 0L else rowOf(word), row)
  }

  /** Puts the own rows on the disk; nothing in the table changes. */
  def write(undo: LongLog): Unit = {
    var i = 0
    while (i < undo.size) {
      val row = undo.second(i)
      if (!Rows.has(row, Rows.Superseded))
        layer.spill.put(id, Rows.keyAddress(row), Rows.keyLength(row), Spilled.of(row))
      i += 1
    }
  }

  /** Takes the own rows back, by `rewind`, which makes the counts those of the base. */
  def takeBack(rewind: => Unit): Unit = {
    val (rows, bytes) = (counts.rows, counts.bytes)
    rewind
    if (!isBegun) {
      baseCounts.set(counts.rows, counts.bytes)
      isBegun = true
    }
    counts.set(rows, bytes)
  }

  /** The transaction ends as if it had not been. */
  def abort(): Unit = if (isBegun) {
    counts.set(baseCounts.rows, baseCounts.bytes)
    isBegun = false
  }

  /** The changes on the disk are the state below from now on: nothing older stands above them. Whether there are any. */
  def commit(): Boolean = isBegun && {
    isBegun = false
    foreach { (key, _) =>
      val base = Platform.BYTE_ARRAY_OFFSET.toLong
      val word = index.find(KeyHash.hash(key, base, key.length), key, base, key.length)
      if (word != 0L) {
        val row = rowOf(word)
        if (Rows.label(row) != 0) keys.remove(row)
        index.erase()
        lists.free(row)
      }
      true
    }
  }

  /** Each key on the disk; stops early when `visit` says false, and says so then. */
  def foreach(visit: (Array[Byte], Array[Byte]) => Boolean): Boolean =
    BelowEntries.foreach(layer.spill.read(id, _, _, null, _))(visit)
}
