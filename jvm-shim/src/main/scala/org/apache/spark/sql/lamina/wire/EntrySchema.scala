package org.apache.spark.sql.lamina.wire

import java.nio.{ByteBuffer, ByteOrder}

import com.google.flatbuffers.FlatBufferBuilder
import org.apache.arrow.flatbuf.{
  Binary,
  Buffer,
  Endianness,
  Field,
  FieldNode,
  Message,
  MessageHeader,
  MetadataVersion,
  RecordBatch,
  Schema,
  Type
}
import org.apache.arrow.flatbuf.{Int => ArrowInt}

/**
 * The Arrow IPC messages of an entry stream: a constant schema, the metadata of a record batch, the end.
 *
 * Only the metadata is made with flatbuffers; bodies are written by [[ChangeWriter]]. Layout of a body: for each column
 * no validity buffer (no column has nulls), then offsets for the binary columns, then data, each padded to 8 bytes.
 */
private[wire] object EntrySchema {

  /** Marks the start of every message, and with length 0 the end of a stream. */
  val Continuation: Int = -1

  val Columns: Seq[String] = Seq("cf", "op", "key", "value")

  private val BatchBuffers = 10

  def padded(length: Long): Long = (length + 7L) & ~7L

  private val schema: Array[Byte] = {
    val builder = new FlatBufferBuilder(1024)
    val fields = Columns.map { name =>
      val fieldName = builder.createString(name)
      val none = Field.createChildrenVector(builder, Array.emptyIntArray)
      val (kind, fieldType) = name match {
        case "cf" => (Type.Int, ArrowInt.createInt(builder, 16, false))
        case "op" => (Type.Int, ArrowInt.createInt(builder, 8, false))
        case _ =>
          Binary.startBinary(builder)
          (Type.Binary, Binary.endBinary(builder))
      }
      Field.createField(builder, fieldName, false, kind, fieldType, 0, none, 0)
    }
    val fieldVector = Schema.createFieldsVector(builder, fields.toArray)
    val header = Schema.createSchema(builder, Endianness.Little, fieldVector, 0, 0)
    finish(builder, MessageHeader.Schema, header, 0L)
    val message = ByteBuffer.allocate(encapsulatedLength(builder)).order(ByteOrder.LITTLE_ENDIAN)
    encapsulate(builder, message)
    message.array()
  }

  /** The schema message, a fresh view of constant bytes. */
  def schemaMessage(): ByteBuffer = ByteBuffer.wrap(schema).asReadOnlyBuffer()

  def endOfStream(): ByteBuffer =
    ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putInt(Continuation).putInt(0).flip()

  /** Writes the message in front of a body of `rows` entries with so many key and value bytes. `builder` is reused. */
  def batchMessage(builder: FlatBufferBuilder, rows: Int, keyBytes: Int, valueBytes: Int): ByteBuffer = {
    builder.clear()
    val offsets = 4L * (rows + 1)
    val lengths = Array(0L, 2L * rows, 0L, rows.toLong, 0L, offsets, keyBytes.toLong, 0L, offsets, valueBytes.toLong)
    val body = lengths.iterator.map(padded).sum
    // flatbuffers are built back to front
    RecordBatch.startBuffersVector(builder, BatchBuffers)
    var end = body
    var index = BatchBuffers - 1
    while (index >= 0) {
      end -= padded(lengths(index))
      Buffer.createBuffer(builder, end, lengths(index))
      index -= 1
    }
    val buffers = builder.endVector()
    RecordBatch.startNodesVector(builder, Columns.size)
    Columns.foreach(_ => FieldNode.createFieldNode(builder, rows.toLong, 0L))
    val nodes = builder.endVector()
    val header = RecordBatch.createRecordBatch(builder, rows.toLong, nodes, buffers, 0, 0)
    finish(builder, MessageHeader.RecordBatch, header, body)
    val message = ByteBuffer.allocate(encapsulatedLength(builder)).order(ByteOrder.LITTLE_ENDIAN)
    encapsulate(builder, message)
    message
  }

  private def finish(builder: FlatBufferBuilder, kind: Byte, header: Int, bodyLength: Long): Unit =
    builder.finish(Message.createMessage(builder, MetadataVersion.V5, kind, header, bodyLength, 0))

  private def encapsulatedLength(builder: FlatBufferBuilder): Int =
    padded(8L + builder.dataBuffer().remaining()).toInt

  /** Continuation, length of the metadata with its padding, metadata. */
  private def encapsulate(builder: FlatBufferBuilder, to: ByteBuffer): Unit = {
    to.putInt(Continuation).putInt(to.capacity() - 8).put(builder.dataBuffer())
    to.rewind()
  }
}
