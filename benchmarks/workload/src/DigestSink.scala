// A sink that drops the rows of timed batches and digests those of all others, so that the results of two state stores
// can be compared without a cost in what is measured.
package lamina.benchmarks.workload

import java.util.{Map => JavaMap, Set => JavaSet}
import java.util.concurrent.atomic.{AtomicLong, AtomicReference}

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.XxHash64Function
import org.apache.spark.sql.connector.catalog.{SupportsWrite, Table, TableCapability, TableProvider}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.write._
import org.apache.spark.sql.connector.write.streaming.{StreamingDataWriterFactory, StreamingWrite}
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend
import org.apache.spark.sql.types.{DataType, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** Rows and the exclusive or of their `xxhash64`, over every batch outside [timedFrom, timedUntil). */
object Digest {
  private val rows = new AtomicLong()
  private val hash = new AtomicLong()
  private val timed = new AtomicReference((Long.MaxValue, Long.MaxValue))

  def timedBatches(from: Long, until: Long): Unit = timed.set((from, until))
  def timedRange: (Long, Long) = timed.get

  def add(count: Long, xor: Long): Unit = {
    rows.addAndGet(count)
    hash.getAndUpdate(_ ^ xor)
    ()
  }

  def result: String = s"${rows.get}:${java.lang.Long.toHexString(hash.get)}"

  /** The same value as the SQL function `xxhash64` over the row's columns. */
  def hashRow(row: InternalRow, types: Array[DataType]): Long = {
    var hash = 42L
    var i = 0
    while (i < types.length) {
      if (!row.isNullAt(i)) hash = XxHash64Function.hash(row.get(i, types(i)), types(i), hash)
      i += 1
    }
    hash
  }
}

final class DigestSink extends TableProvider {
  override def inferSchema(options: CaseInsensitiveStringMap): StructType = new StructType()
  override def supportsExternalMetadata(): Boolean = true

  override def getTable(
      rowSchema: StructType,
      partitioning: Array[Transform],
      properties: JavaMap[String, String]): Table =
    new Table with SupportsWrite {
      override def name(): String = "digest"
      override def schema(): StructType = rowSchema
      override def capabilities(): JavaSet[TableCapability] =
        JavaSet.of(TableCapability.STREAMING_WRITE, TableCapability.ACCEPT_ANY_SCHEMA)
      override def newWriteBuilder(info: LogicalWriteInfo): WriteBuilder =
        new WriteBuilder with SupportsStreamingUpdateAsAppend {
          override def build(): Write = new Write {
            override def toStreaming: StreamingWrite = new DigestWrite(info.schema().map(_.dataType).toArray)
          }
        }
    }
}

final case class DigestMessage(rows: Long, hash: Long) extends WriterCommitMessage

final class DigestWrite(types: Array[DataType]) extends StreamingWrite {
  override def createStreamingWriterFactory(info: PhysicalWriteInfo): StreamingDataWriterFactory =
    new DigestWriterFactory(types, Digest.timedRange)

  override def useCommitCoordinator(): Boolean = false

  override def commit(epochId: Long, messages: Array[WriterCommitMessage]): Unit =
    messages.collect { case DigestMessage(rows, hash) => Digest.add(rows, hash) }

  override def abort(epochId: Long, messages: Array[WriterCommitMessage]): Unit = ()
}

/** Takes the range along: an executor has a `Digest` of its own, of which nobody is told. */
final class DigestWriterFactory(types: Array[DataType], timed: (Long, Long)) extends StreamingDataWriterFactory {
  override def createWriter(partitionId: Int, taskId: Long, epochId: Long): DataWriter[InternalRow] =
    if (epochId >= timed._1 && epochId < timed._2) new DroppingWriter else new HashingWriter(types)
}

final class DroppingWriter extends DataWriter[InternalRow] {
  override def write(row: InternalRow): Unit = ()
  override def commit(): WriterCommitMessage = DigestMessage(0, 0)
  override def abort(): Unit = ()
  override def close(): Unit = ()
}

final class HashingWriter(types: Array[DataType]) extends DataWriter[InternalRow] {
  private var rows = 0L
  private var hash = 0L

  override def write(row: InternalRow): Unit = {
    rows += 1
    hash ^= Digest.hashRow(row, types)
  }

  override def commit(): WriterCommitMessage = DigestMessage(rows, hash)
  override def abort(): Unit = ()
  override def close(): Unit = ()
}
