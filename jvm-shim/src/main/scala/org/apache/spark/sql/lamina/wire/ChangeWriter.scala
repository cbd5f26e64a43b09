package org.apache.spark.sql.lamina.wire

import java.nio.ByteBuffer

import com.google.flatbuffers.FlatBufferBuilder

import org.apache.spark.sql.lamina.ColumnFamily
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.EntrySink
import org.apache.spark.unsafe.Platform

/** Where finished parts of a request go. Buffers may be reused by the caller once `flush` has returned. */
private[wire] trait ByteSink {
  def add(bytes: ByteBuffer): Unit
  def flush(): Unit
}

/**
 * Builds the Arrow IPC stream of one section by hand, in off-heap column buffers that are reused.
 *
 * A section is written in one of two ways. *Held*: `hold(begin)`, entries, `finish(sink)`; nothing is sent before `finish`,
 * unless the section needs more than one batch: when the first is full, `begin` gives the sink, and the section goes on
 * streamed. *Streamed*: `stream(sink)`, entries, `finish(sink)`; each batch is sent as soon as it is full.
 *
 * Invariants between calls: offsets have `rows + 1` valid elements; `rows <= MaxRows`; keys and values together are at
 * most `batchBytes`, unless the batch has a single entry. Not thread-safe.
 *
 * @param batchBytes key and value bytes of a batch; the format allows 64 MiB of each
 */
private[wire] final class ChangeWriter(batchBytes: Int = ChangeWriter.BatchBytes) extends EntrySink with Reusable {
  import ChangeWriter._

  private val families = new DirectBuffer(16 << 10)
  private val ops = new DirectBuffer(8 << 10)
  private val keyOffsets = new DirectBuffer(32 << 10)
  private val valueOffsets = new DirectBuffer(32 << 10)
  private val keys = new DirectBuffer(256 << 10)
  private val values = new DirectBuffer(256 << 10)
  private val builder = new FlatBufferBuilder(1024)

  private var begin: () => ByteSink = _
  private var sink: ByteSink = _
  private var rows = 0
  private var keyBytes = 0
  private var valueBytes = 0
  private var mostRows = 0
  private var mostKeyBytes = 0
  private var mostValueBytes = 0

  // copies of the buffers' addresses, and how much is left before `entry` has to look closer
  private var familyAddress = 0L
  private var opAddress = 0L
  private var keyOffsetAddress = 0L
  private var valueOffsetAddress = 0L
  private var keyAddress = 0L
  private var valueAddress = 0L
  private var rowLimit = 0

  /** Starts a section that is kept until `finish` if it fits into one batch, and else goes to what `begin` gives. */
  def hold(begin: () => ByteSink): Unit = {
    open()
    this.begin = begin
  }

  /** Starts a section whose full batches go to `to` at once. */
  def stream(to: ByteSink): Unit = {
    open()
    start(to)
  }

  /** From now on batches go to `to`; the schema message comes first. */
  private def start(to: ByteSink): Unit = {
    sink = to
    to.add(EntrySchema.schemaMessage())
  }

  private def open(): Unit = {
    sink = null
    rows = 0
    ensureRows(MinRows)
    keys.ensure(8, 0)
    values.ensure(8, 0)
    remember()
    empty()
  }

  private def empty(): Unit = {
    rows = 0
    keyBytes = 0
    valueBytes = 0
    Platform.putInt(null, keyOffsetAddress, 0)
    Platform.putInt(null, valueOffsetAddress, 0)
  }

  override def entry(
      family: Int,
      op: Byte,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    val keyEnd = keyBytes.toLong + keyLength
    val valueEnd = valueBytes.toLong + valueLength
    if (rows >= rowLimit || keyEnd > keys.capacity || valueEnd > values.capacity || keyEnd + valueEnd > batchBytes) {
      makeRoom(keyLength, valueLength)
    }
    append(family, op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
  }

  private def append(
      family: Int,
      op: Byte,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    val row = rows
    if ((family >>> 16) != 0) ColumnFamily.requireId(family, "a changed row")
    Platform.putShort(null, familyAddress + 2L * row, family.toShort)
    Platform.putByte(null, opAddress + row, op)
    copy(keyBase, keyOffset, keyAddress + keyBytes, keyLength)
    keyBytes += keyLength
    Platform.putInt(null, keyOffsetAddress + 4L * (row + 1), keyBytes)
    copy(valueBase, valueOffset, valueAddress + valueBytes, valueLength)
    valueBytes += valueLength
    Platform.putInt(null, valueOffsetAddress + 4L * (row + 1), valueBytes)
    rows = row + 1
  }

  /** Sends or grows until one more entry fits. */
  private def makeRoom(keyLength: Int, valueLength: Int): Unit = {
    val batchIsFull = rows > 0 &&
      (rows == MaxRows || keyBytes.toLong + keyLength + valueBytes + valueLength > batchBytes)
    if (batchIsFull) {
      if (sink == null) start(begin())
      sendBatch(sink)
      sink.flush()
      empty()
    }
    if (keyLength > DirectBuffer.MaxBytes || valueLength > DirectBuffer.MaxBytes)
      throw new LaminaError(LaminaError.RowTooLarge, s"a key of $keyLength and a value of $valueLength bytes")
    ensureRows(rows + 1)
    keys.ensure(EntrySchema.padded(keyBytes.toLong + keyLength), keyBytes)
    values.ensure(EntrySchema.padded(valueBytes.toLong + valueLength), valueBytes)
    remember()
  }

  private def ensureRows(wanted: Int): Unit = {
    families.ensure(EntrySchema.padded(2L * wanted), 2 * rows)
    ops.ensure(EntrySchema.padded(wanted.toLong), rows)
    keyOffsets.ensure(EntrySchema.padded(4L * (wanted + 1)), 4 * (rows + 1))
    valueOffsets.ensure(EntrySchema.padded(4L * (wanted + 1)), 4 * (rows + 1))
  }

  private def remember(): Unit = {
    familyAddress = families.address
    opAddress = ops.address
    keyOffsetAddress = keyOffsets.address
    valueOffsetAddress = valueOffsets.address
    keyAddress = keys.address
    valueAddress = values.address
    val offsets = math.min(keyOffsets.capacity, valueOffsets.capacity) / 4 - 1
    rowLimit = math.min(math.min(MaxRows, offsets), math.min(families.capacity / 2, ops.capacity))
  }

  /** Ends the section. A held one is sent whole, a streamed one from its last batch on; everything is flushed. */
  def finish(to: ByteSink): Unit = {
    if (sink == null) start(to)
    if (rows > 0) sendBatch(to)
    to.add(EntrySchema.endOfStream())
    to.flush()
  }

  private def sendBatch(to: ByteSink): Unit = {
    mostRows = math.max(mostRows, rows)
    mostKeyBytes = math.max(mostKeyBytes, keyBytes)
    mostValueBytes = math.max(mostValueBytes, valueBytes)
    to.add(EntrySchema.batchMessage(builder, rows, keyBytes, valueBytes))
    to.add(whole(families, 2 * rows))
    to.add(whole(ops, rows))
    to.add(whole(keyOffsets, 4 * (rows + 1)))
    to.add(whole(keys, keyBytes))
    to.add(whole(valueOffsets, 4 * (rows + 1)))
    to.add(whole(values, valueBytes))
  }

  /** A buffer's content with zeros up to the next multiple of 8; there is room, since capacities are multiples of 8. */
  private def whole(buffer: DirectBuffer, length: Int): ByteBuffer = {
    val end = EntrySchema.padded(length.toLong).toInt
    var at = length
    while (at < end) {
      Platform.putByte(null, buffer.address + at, 0)
      at += 1
    }
    buffer.view(end)
  }

  override def release(): Unit = {
    begin = null
    sink = null
    families.release(2 * mostRows)
    ops.release(mostRows)
    keyOffsets.release(4 * (mostRows + 1))
    valueOffsets.release(4 * (mostRows + 1))
    keys.release(mostKeyBytes)
    values.release(mostValueBytes)
    rows = 0
    keyBytes = 0
    valueBytes = 0
    mostRows = 0
    mostKeyBytes = 0
    mostValueBytes = 0
  }

  override def free(): Unit = buffers.foreach(_.free())

  override def memoryBytes: Long = buffers.iterator.map(_.capacity.toLong).sum

  private def buffers: Seq[DirectBuffer] = Seq(families, ops, keyOffsets, valueOffsets, keys, values)
}

private[wire] object ChangeWriter {

  /** Small enough that building, sending and decoding of a long section overlap and buffers stay small. */
  val BatchBytes: Int = 16 << 20

  private val MaxRows = 1 << 20
  private val MinRows = 4096

  /** Above this, one call of the JDK's copy is faster than a loop. */
  private val LoopBytes = 192

  private def copy(base: AnyRef, offset: Long, to: Long, length: Int): Unit =
    if (length > LoopBytes) Platform.copyMemory(base, offset, null, to, length.toLong)
    else {
      var at = 0
      val words = length & ~7
      while (at < words) {
        Platform.putLong(null, to + at, Platform.getLong(base, offset + at))
        at += 8
      }
      while (at < length) {
        Platform.putByte(null, to + at, Platform.getByte(base, offset + at))
        at += 1
      }
    }
}
