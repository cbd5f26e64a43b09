package org.apache.spark.sql.lamina.table

import java.nio.ByteBuffer

import org.apache.spark.unsafe.Platform

/** What a layered table can do for memory. */
private[table] trait Relief {

  /** All families of the table that forget. */
  private[table] def forgetting: Iterable[FamilyTable]

  /** Puts the changes of the open transaction on the disk; whether there were any. */
  def spill(): Boolean

  /** Whether the transaction has changes which could be put there, and doing it before it has to be: whether it did. */
  def canSpill: Boolean
  def spillEarly(): Boolean

  /**
   * Puts all that differs from the state below on the disk, changes of the open transaction first, and forgets all others; whether there
   * was any.
   */
  def relieve(): Boolean
}

/** What all families of a layered table share: the state below, which may be none, and since when rows differ from it. */
private[table] final class Layer(pool: PagePool, table: Relief) {
  @volatile var below: Below = _
  val labels = new Labels

  /** The row of the state below that a cursor is at which is used under the lock. */
  val scanned = new TransientRow

  /** Keys that were looked for below to be changed or read by the writer, and those that were there. */
  var reads = 0L
  var found = 0L

  def read(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = {
    val value = below.get(family, keyBase, keyOffset, keyLength)
    reads += 1
    if (value != null) found += 1
    value
  }

  /** For how many more reads no row is kept, since there was no memory for one. */
  private var unkept = 0

  def keepsNone(): Boolean = unkept > 0 && {
    unkept -= 1
    true
  }

  def keepNone(): Unit = unkept = Layer.Unkept

  /** Changes of the open transaction that are on the disk, or null; and what it sees where the table has no row. */
  var spill: Spill = _
  private var view: Below = _

  def seen: Below = if (view == null) below else view

  /**
   * After memory was refused: forgets all rows that are the same below; then puts the transaction's changes on the disk; then the base's,
   * too. Not while an address of a row is in hand.
   *
   * @param from the first of these steps to be tried
   * @return the step to be tried where memory is refused again; -1 where nothing is left to be done
   */
  def refused(from: Int): Int = {
    var (step, gave) = (from, false)
    while (!gave && step <= Layer.Relieve) {
      gave = if (step == 0) forgetAll() else if (step == 1) table.spill() else table.relieve()
      step += 1
    }
    if (gave) step else -1
  }

  private def forgetAll(): Boolean =
    table.forgetting.foldLeft(0L)((bytes, family) => bytes + family.forgetAllClean()) > 0

  /** Bytes that came since the transaction began, or since its changes were put on the disk. */
  var came = 0L

  /** What the transaction sees has changed: scans that are under way read it anew. */
  def renew(): Unit = {
    came = 0L
    forgetting.reset()
    view = if (spill == null) null else new SpilledBelow(below, spill, 0L)
  }

  private var isWriting = false

  /** A transaction begins or ends; of large rows no memory is left behind, since it is in no budget. */
  def writing(begins: Boolean): Unit = if (begins != isWriting) {
    isWriting = begins
    pool.writing(begins)
    if (!begins) {
      scanned.rest()
      table.forgetting.foreach(_.restTransient())
    }
  }

  private var coming = 0L

  /** Looks for rows that may go. */
  private val forgetting = new Backoff

  /**
   * Where memory is short, forgets some rows that are the same below before more come: looked at for each so many bytes that do, and
   * less often while it gives nothing. If there are none, here or elsewhere, and a part of the memory has come, the transaction's
   * changes go to the disk. The part is the smaller the more transactions there are.
   */
  def makeRoom(bytes: Int): Unit = {
    coming += Layer.RowBytes + bytes
    came += Layer.RowBytes + bytes
    if (coming >= PagePool.BytesALook) {
      coming = 0L
      if (!pool.isNearlyFull) forgetting.reset()
      else if (!forgetSome() && came > pool.writersShare && table.canSpill && !pool.othersForget())
        table.spillEarly()
    }
  }

  /** Whether as much could be forgotten as may come until the next look. */
  private def forgetSome(): Boolean = forgetting.isDue && {
    var forgotten = 0L
    table.forgetting.foreach { family =>
      var parts = math.max(1, family.indexParts / Layer.PartOfIndex)
      while (parts > 0) {
        forgotten += family.forgetClean()
        parts -= 1
      }
    }
    forgetting.done(forgotten > 0)
    forgotten >= PagePool.BytesALook
  }
}

private[table] object Layer {

  /** The last step of `refused`. */
  val Relieve = 2

  /** What a row takes beside its key and value, about. */
  val RowBytes = 48L

  /** All rows are looked at in so many looks. */
  val PartOfIndex = 16

  /** Reads after which it is tried again to keep a row. */
  val Unkept = 1024
}

/** A row that is in no table, and is good until the next one. */
private[table] final class TransientRow {
  private var memory: ByteBuffer = _

  /** Rows since the last one that needed so much. */
  private var small = 0

  def of(keyBase: AnyRef, keyOffset: Long, keyLength: Int, value: Array[Byte]): Long = {
    val bytes = Rows.HeaderBytes + Rows.padded(keyLength) + Rows.padded(value.length) + 8L
    small = if (capacity <= TransientRow.Kept || bytes > TransientRow.Kept) 0 else small + 1
    if (capacity < bytes || small > TransientRow.Small) {
      memory = ByteBuffer.allocateDirect(Rows.clamp(if (bytes < TransientRow.Kept) 2 * bytes else bytes + bytes / 8))
      small = 0
    }
    val row = (Platform.getDirectBufferAddress(memory) + 7L) & ~7L
    Rows.writeHeader(row, keyLength, value.length, 0)
    Platform.copyMemory(keyBase, keyOffset, null, Rows.keyAddress(row), keyLength)
    Platform.copyMemory(value, Platform.BYTE_ARRAY_OFFSET.toLong, null, Rows.valueAddress(row), value.length)
    row
  }

  /** Gives back what a large row took; the last row is gone then. */
  def rest(): Unit = if (capacity > TransientRow.Kept) {
    memory = null
    small = 0
  }

  private[table] def capacity: Int = if (memory == null) 0 else memory.capacity
}

private[table] object TransientRow {

  /**
   * What is larger goes after so many small rows, and at the end of a transaction: each table and column family has such memory, which is
   * in no budget.
   */
  val Kept = 64 << 10
  val Small = 1024
}
