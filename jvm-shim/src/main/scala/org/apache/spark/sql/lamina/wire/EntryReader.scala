package org.apache.spark.sql.lamina.wire

import java.nio.{ByteBuffer, ByteOrder}

import scala.util.control.NonFatal

import org.apache.arrow.flatbuf.{Field, Message, MessageHeader, RecordBatch, Schema, Type}
import org.apache.arrow.flatbuf.{Int => ArrowInt}

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.EntrySink
import org.apache.spark.unsafe.Platform

/** Where bytes of a response come from. Fills the whole buffer or throws. */
private[wire] trait ByteSource {
  def readFully(to: ByteBuffer): Unit
}

/** Takes the entries of a change feed; key and value are absolute addresses, valid during the call only. */
private[wire] trait FeedSink {
  def entry(version: Long, family: Int, op: Byte, key: Long, keyLength: Int, value: Long, valueLength: Int): Unit
}

/**
 * Reads an Arrow IPC stream of entries: each body lands in one reused off-heap buffer, and the sink gets addresses
 * in it.
 *
 * Nothing of a batch is believed before it was checked against the body's length, since a wrong offset would read
 * memory that is not ours. Columns that are not known are skipped. Not thread-safe.
 */
private[wire] final class EntryReader extends Reusable {
  import EntryReader._

  private val prefix = ByteBuffer.allocateDirect(8).order(ByteOrder.LITTLE_ENDIAN)
  private val metadata = new DirectBuffer(4 << 10)
  private val body = new DirectBuffer(256 << 10)
  private var mostMetadata = 0
  private var mostBody = 0

  /** Reads one stream up to its end and gives every entry to `sink`; returns how many there were. */
  def read(from: ByteSource, sink: EntrySink): Long =
    readStream(from, withVersion = false) { (columns, rows) =>
      var announced = 0
      var row = 0
      while (row < rows) {
        if (row == announced) announced = announce(columns, row, math.min(rows, row + EntrySink.MostAhead), sink)
        val key = columns.key.start(row)
        val value = columns.value.start(row)
        sink.entry(
          columns.family(row),
          columns.op(row),
          null,
          columns.key.data + key,
          columns.key.length(row, key),
          null,
          columns.value.data + value,
          columns.value.length(row, value)
        )
        row += 1
      }
    }

  private def announce(columns: Columns, from: Int, until: Int, sink: EntrySink): Int = {
    var row = from
    while (row < until) {
      val key = columns.key.start(row)
      sink.ahead(columns.family(row), null, columns.key.data + key, columns.key.length(row, key))
      row += 1
    }
    sink.fetch()
    until
  }

  /** As `read`, for a stream with one more column `version`. */
  def readFeed(from: ByteSource, sink: FeedSink): Long =
    readStream(from, withVersion = true) { (columns, rows) =>
      var row = 0
      while (row < rows) {
        val key = columns.key.start(row)
        val value = columns.value.start(row)
        sink.entry(
          columns.version(row),
          columns.family(row),
          columns.op(row),
          columns.key.data + key,
          columns.key.length(row, key),
          columns.value.data + value,
          columns.value.length(row, value)
        )
        row += 1
      }
    }

  private def readStream(from: ByteSource, withVersion: Boolean)(batch: (Columns, Int) => Unit): Long = {
    val layout = readMessage(from).flatMap(message => parsed(Layout.of(message, withVersion))).getOrElse(
      throw malformed("the stream does not start with a schema")
    )
    var total = 0L
    var more = true
    while (more) {
      readMessage(from) match {
        case None => more = false
        case Some(message) =>
          val (columns, rows) = readBatch(from, message, layout)
          if (rows > 0) batch(columns, rows)
          total += rows
      }
    }
    total
  }

  /** The next message's metadata, or None at the end of the stream. */
  private def readMessage(from: ByteSource): Option[Message] = {
    prefix.clear()
    from.readFully(prefix)
    if (prefix.getInt(0) != EntrySchema.Continuation) throw malformed("a message starts with something else")
    val length = prefix.getInt(4)
    if (length == 0) None
    else {
      if (length < 0 || length > MaxMetadataBytes) throw malformed(s"a message has $length bytes of metadata")
      mostMetadata = math.max(mostMetadata, length)
      metadata.ensure(length.toLong, 0)
      from.readFully(metadata.view(length))
      Some(parsed(Message.getRootAsMessage(metadata.view(length))))
    }
  }

  private def readBatch(from: ByteSource, message: Message, layout: Layout): (Columns, Int) = {
    val length = parsed(message.bodyLength)
    if (length < 0 || length > DirectBuffer.MaxBytes) throw malformed(s"a record batch has $length bytes")
    mostBody = math.max(mostBody, length.toInt)
    body.ensure(math.max(length, 8L), 0)
    from.readFully(body.view(length.toInt))
    parsed {
      if (message.headerType != MessageHeader.RecordBatch)
        throw malformed(s"unexpected message ${MessageHeader.name(message.headerType.toInt)}")
      val batch = message.header(new RecordBatch).asInstanceOf[RecordBatch]
      if (batch.compression != null) throw malformed("a record batch is compressed")
      val rows = batch.length
      if (rows < 0 || rows > Int.MaxValue / 8) throw malformed(s"a record batch has $rows rows")
      (new Columns(batch, layout, rows.toInt, body.address, length), rows.toInt)
    }
  }

  override def release(): Unit = {
    metadata.release(mostMetadata)
    body.release(mostBody)
    mostMetadata = 0
    mostBody = 0
  }

  override def free(): Unit = {
    metadata.free()
    body.free()
  }

  override def memoryBytes: Long = metadata.capacity.toLong + body.capacity
}

private[wire] object EntryReader {
  private val MaxMetadataBytes = 16 << 20

  private def malformed(what: String): LaminaError =
    new LaminaError(LaminaError.EngineProtocol, s"the engine sent a malformed Arrow stream: $what")

  /** Flatbuffers do not verify themselves: an index out of bounds means that the metadata is not what it claims. */
  private def parsed[T](body: => T): T =
    try body
    catch {
      case error: LaminaError => throw error
      case NonFatal(error) => throw malformed(s"its metadata cannot be read ($error)")
    }

  /** Where a column stands: its index among the fields, and of its first buffer among a batch's buffers. */
  private final case class Place(field: Int, buffer: Int)

  private final case class Layout(family: Place, op: Place, key: Place, value: Place, version: Option[Place])

  private object Layout {

    /** None where the message is not a schema. */
    def of(message: Message, withVersion: Boolean): Option[Layout] =
      if (message.headerType == MessageHeader.Schema)
        Some(of(message.header(new Schema).asInstanceOf[Schema], withVersion))
      else None

    private def of(schema: Schema, withVersion: Boolean): Layout = {
      var places = Map.empty[String, (Place, Field)]
      var buffer = 0
      (0 until schema.fieldsLength).foreach { index =>
        val field = schema.fields(index)
        places += field.name -> (Place(index, buffer) -> field)
        buffer += bufferCount(field)
      }
      def place(name: String, isRight: Field => Boolean): Place = places.get(name) match {
        case Some((found, field)) if isRight(field) => found
        case Some(_) => throw malformed(s"column $name has another type")
        case None => throw malformed(s"column $name is missing")
      }
      def int(bits: Int, signed: Boolean)(field: Field): Boolean = field.typeType == Type.Int && {
        val kind = field.`type`(new ArrowInt).asInstanceOf[ArrowInt]
        kind.bitWidth == bits && kind.isSigned == signed
      }
      def binary(field: Field): Boolean = field.typeType == Type.Binary
      Layout(
        place("cf", int(16, signed = false)),
        place("op", int(8, signed = false)),
        place("key", binary),
        place("value", binary),
        if (withVersion) Some(place("version", int(64, signed = true))) else None
      )
    }

    private def bufferCount(field: Field): Int = field.typeType match {
      case Type.Null => 0
      case Type.Binary | Type.Utf8 | Type.LargeBinary | Type.LargeUtf8 => 3
      case Type.Int | Type.FloatingPoint | Type.Bool | Type.Decimal | Type.Date | Type.Time | Type.Timestamp |
          Type.Interval | Type.Duration | Type.FixedSizeBinary => 2
      case other => throw malformed(s"column ${field.name} has the type ${Type.name(other.toInt)}")
    }
  }

  /** The columns of the batch in the buffer, as addresses. */
  private final class Columns(batch: RecordBatch, layout: Layout, rows: Int, body: Long, bodyLength: Long) {
    private val families = data(layout.family, 2)
    private val ops = data(layout.op, 1)
    private val versions = layout.version.map(data(_, 8)).getOrElse(0L)
    val key = new BinaryColumn(layout.key)
    val value = new BinaryColumn(layout.value)

    def family(row: Int): Int = Platform.getShort(null, families + 2L * row) & 0xffff
    def op(row: Int): Byte = Platform.getByte(null, ops + row)
    def version(row: Int): Long = Platform.getLong(null, versions + 8L * row)

    /** Address of a buffer with at least `needed` bytes, and its length. */
    private def buffer(index: Int, needed: Long): (Long, Long) = {
      if (index >= batch.buffersLength) throw malformed("a record batch has too few buffers")
      val found = batch.buffers(index)
      if (found.offset < 0 || found.length < needed || found.offset > bodyLength - found.length)
        throw malformed(s"buffer $index of a record batch is out of bounds")
      (body + found.offset, found.length)
    }

    private def data(place: Place, width: Int): Long = {
      requireNoNulls(place)
      buffer(place.buffer + 1, rows.toLong * width)._1
    }

    private def requireNoNulls(place: Place): Unit =
      if (
        place.field >= batch.nodesLength || batch.nodes(place.field).nullCount != 0 ||
        batch.nodes(place.field).length != rows
      )
        throw malformed("a column has nulls or another length than its batch")

    final class BinaryColumn(place: Place) {
      requireNoNulls(place)
      private val offsets = buffer(place.buffer + 1, if (rows == 0) 0L else 4L * (rows + 1))._1
      private val (start, size) = buffer(place.buffer + 2, 0L)

      /** Address of offset 0. */
      def data: Long = start
      def start(row: Int): Int = Platform.getInt(null, offsets + 4L * row)

      /** Length of the row that starts at offset `from`; checks both ends. */
      def length(row: Int, from: Int): Int = {
        val end = Platform.getInt(null, offsets + 4L * (row + 1))
        if (from < 0 || end < from || end > size) throw malformed(s"offset $from..$end of row $row is out of bounds")
        end - from
      }
    }
  }
}
