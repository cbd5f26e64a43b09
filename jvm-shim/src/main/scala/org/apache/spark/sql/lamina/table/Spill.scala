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

  override def isBroken: Boolean = spill.isBroken || under != null && under.isBroken

  override def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = {
    val entry = spill.get(family, keyBase, keyOffset, keyLength)
    if (entry != null) Spilled.value(entry)
    else if (under == null) null
    else under.get(family, keyBase, keyOffset, keyLength)
  }

  override def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit = {
    val (ours, theirs) = (new BelowEntries, new BelowEntries)
    var (last, isAbove, ended) = (from, above, false)
    while (!ended && into.hasRoom) {
      ours.clear()
      theirs.clear()
      spill.read(family, last, isAbove, until, ours)
      if (under == null) theirs.isLast = true else under.read(family, last, isAbove, until, theirs)
      var (i, j, known) = (0, 0, true)
      while (known && into.hasRoom) {
        val (noOurs, noTheirs) = (i == ours.count, j == theirs.count)
        if (noOurs && noTheirs && ours.isLast && theirs.isLast) {
          ended = true
          known = false
        } else if (noOurs && !ours.isLast || noTheirs && !theirs.isLast) known = false
        else {
          val order =
            if (noOurs) 1
            else if (noTheirs) -1
            else java.util.Arrays.compareUnsigned(ours.keys(i), theirs.keys(j))
          last = if (order <= 0) ours.keys(i) else theirs.keys(j)
          isAbove = true
          val value = if (order <= 0) Spilled.value(ours.values(i)) else theirs.values(j)
          if (value != null) into.add(last, value)
          if (order <= 0) i += 1
          if (order >= 0) j += 1
        }
      }
    }
    into.isLast = ended
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
