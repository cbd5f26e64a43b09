package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * Changes of one transaction that were put on the local disk, since memory is short: the state of each key when it was last put
 * there. Read by several threads at once; written under the table's lock.
 */
private[lamina] trait Spill extends AutoCloseable {

  /** What it takes on the local disk. */
  def bytes: Long

  /** What is there of a key, as [[Spilled]] has it, or null. */
  def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte]

  /** Replaces what is there of the key at an address. */
  def put(family: Int, key: Long, keyLength: Int, entry: Array[Byte]): Unit

  /** Leaves nothing of it in memory. */
  def flush(): Unit

  /** Whether reading or writing has failed: the table that has it is to be loaded anew. */
  def isBroken: Boolean = false

  /** As [[Below.read]], with entries as [[Spilled]] has them. */
  def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit
}

/** One key's entry in a [[Spill]]: `operation, and whether the base has no such key (byte) | length in the base (int) | value`. */
private[table] object Spilled {
  private val FreshBit = 8
  private val Header = 5
  private val Base = Platform.BYTE_ARRAY_OFFSET.toLong

  /** The entry of an own row. */
  def of(row: Long): Array[Byte] = {
    val op = if (Rows.isTombstone(row)) Ops.Delete else if (Rows.has(row, Rows.Appended)) Ops.Append else Ops.Put
    val length = if (op == Ops.Delete) 0 else Rows.valueLength(row)
    val entry = new Array[Byte](Header + length)
    entry(0) = (op | (if (Rows.has(row, Rows.Fresh)) FreshBit else 0)).toByte
    Platform.putInt(entry, Base + 1, if (op == Ops.Append) Rows.listBase(row) else 0)
    if (length > 0) Platform.copyMemory(null, Rows.valueAddress(row), entry, Base + Header, length)
    entry
  }

  def op(entry: Array[Byte]): Byte = (entry(0) & ~FreshBit).toByte

  /** Whether the base has no such key. */
  def isFresh(entry: Array[Byte]): Boolean = (entry(0) & FreshBit) != 0

  /** Whether the key is again as in the base, which has none. */
  def isNothing(entry: Array[Byte]): Boolean = op(entry) == Ops.Delete && isFresh(entry)

  /** The first bytes of an appended value that the base has. */
  def listBase(entry: Array[Byte]): Int = Platform.getInt(entry, Base + 1)

  /** Where the value begins, and its length. */
  def valueOffset: Long = Base + Header
  def valueLength(entry: Array[Byte]): Int = entry.length - Header

  /** The value, or null where the key was removed. */
  def value(entry: Array[Byte]): Array[Byte] =
    if (op(entry) == Ops.Delete) null else java.util.Arrays.copyOfRange(entry, Header, entry.length)
}

/**
 * A state with changes on top of it that are on the local disk.
 *
 * @param under that state, or null where there is none
 * @param at the version that has these changes
 */
private[table] final class SpilledBelow(val under: Below, val spill: Spill, val at: Long) extends Below {

  /** How many sets of changes lie on top of each other. */
  val depth: Int = 1 + (under match {
    case spilled: SpilledBelow => spilled.depth
    case _ => 0
  })

  /** That of which all rows are here; of later ones some are. */
  override def version: Long = if (under == null) 0L else under.version

  override def diskBytes: Long = spill.bytes + (if (under == null) 0L else under.diskBytes)

  override def files: Long = if (under == null) 0L else under.files

  override def filesAtLevels: Seq[Long] = if (under == null) Nil else under.filesAtLevels

  override def isBroken: Boolean = spill.isBroken || under != null && under.isBroken

  override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = {
    val entry = spill.get(family, keyBase, keyOffset, keyLength)
    if (entry != null) Spilled.value(entry)
    else if (under == null) null
    else under.get(family, keyBase, keyOffset, keyLength)
  }

  override def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit = {
    val ours = new MergedEntries(into, spill.read(family, _, _, until, _), from, above)
    val theirs =
      if (under == null) MergedEntries.none
      else new MergedEntries(into, under.read(family, _, _, until, _), from, above)
    while (into.hasRoom && (ours.key != null || theirs.key != null)) {
      val order =
        if (ours.key == null) 1
        else if (theirs.key == null) -1
        else java.util.Arrays.compareUnsigned(ours.key, theirs.key)
      val key = if (order <= 0) ours.key else theirs.key
      val value = if (order <= 0) Spilled.value(ours.value) else theirs.value
      if (value != null) into.add(key, value)
      if (order <= 0) ours.next()
      if (order >= 0) theirs.next()
    }
    into.isLast = ours.key == null && theirs.key == null
  }

  /** The same changes on top of a newer state, which may have them: then they are given up. The old one is closed. */
  def on(newer: Below): Below = {
    val next = under match {
      case spilled: SpilledBelow => spilled.on(newer)
      case other =>
        if (other != null) other.close()
        newer
    }
    if (at > newer.version) new SpilledBelow(next, spill, at)
    else {
      spill.close()
      next
    }
  }

  override def close(): Unit =
    try spill.close()
    finally if (under != null) under.close()
}

/** One of two sides that are merged: its entries one by one, of which as many are read at once as the result has room for. */
private[table] final class MergedEntries(
    into: BelowEntries,
    read: (Array[Byte], Boolean, BelowEntries) => Unit,
    from: Array[Byte],
    above: Boolean
) {
  private val entries = new BelowEntries(into.room)
  private var position = 0
  private var before = into.count

  /** That of the entry, or null behind the last one. */
  var key: Array[Byte] = _

  read(from, above, entries)
  settle()

  def value: Array[Byte] = entries.values(position)

  def next(): Unit = {
    position += 1
    settle()
  }

  private def settle(): Unit = {
    while (position == entries.count && !entries.isLast) {
      val (last, isAbove) = if (position == 0) (from, above) else (entries.keys(position - 1), true)
      // more where all were removed keys
      if (into.count == before) entries.clear() else entries.clear(into.room)
      before = into.count
      position = 0
      read(last, isAbove, entries)
    }
    key = if (position == entries.count) null else entries.keys(position)
  }
}

private[table] object MergedEntries {

  /** No entries. */
  def none: MergedEntries =
    new MergedEntries(new BelowEntries, (_, _, entries) => entries.isLast = true, null, above = false)
}
