package org.apache.spark.sql.lamina

import java.util.concurrent.{ArrayBlockingQueue, TimeUnit}

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{RecordType, StateStore}
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.Ops
import org.apache.spark.sql.lamina.wire.DaemonThreads
import org.apache.spark.unsafe.Platform
import org.apache.spark.util.NextIterator

/**
 * The changes of a range of versions as Spark's state data source reads them: (record type, key, value or null, batch).
 *
 * The engine sends, the source asks: a thread of its own receives into a queue that is bounded in rows and in bytes.
 * Appended elements come as one merge record each.
 */
final class ChangeFeed(
    engine: EngineStore,
    codecs: Codecs,
    startVersion: Long,
    endVersion: Long,
    endAttempt: Option[String],
    familyName: Option[String]
) extends NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] {
  import ChangeFeed._

  private val queue = new ArrayBlockingQueue[Message](QueuedChunks)
  @volatile private var stopped = false
  private var rows: Iterator[Row] = Iterator.empty
  private var codec: FamilyCodec = _

  private val receiver = DaemonThreads.start(s"lamina-change-feed-$startVersion-$endVersion")(receive())
  Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit](_ => closeIfNeeded()))

  override protected def getNext(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) = {
    while (!rows.hasNext && !finished) queue.take() match {
      case Families(families) =>
        val name = familyName.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME)
        codec = families.get(name).map(codecs.of).orElse(codecs.registered(name)).getOrElse(
          throw new LaminaError(LaminaError.StoreUnsupported, s"there is no column family $name")
        )
      case Chunk(received) => rows = received.iterator.flatMap(decode)
      case End(null) => finished = true
      case End(error) => throw error
    }
    if (finished) null
    else {
      val next = rows.next()
      (next.record, next.key, next.value, next.batch)
    }
  }

  override protected def close(): Unit = {
    stopped = true
    receiver.interrupt()
  }

  private def receive(): Unit = {
    val outcome =
      try {
        receiveRows()
        End(null)
      } catch { case error: Throwable => End(error) }
    // nobody waits for the end of a feed whose reader is gone, and whoever closed it has interrupted this thread
    try if (stopped) engine.closeIfLeft() else offer(outcome)
    catch { case _: InterruptedException | _: LaminaError if stopped => () }
  }

  private def receiveRows(): Unit = {
    var chunk = new Array[Received](ChunkRows)
    var count = 0
    var bytes = 0L
    var family = -1
    def flush(): Unit = if (count > 0) {
      offer(Chunk(chunk.take(count)))
      chunk = new Array[Received](ChunkRows)
      count = 0
      bytes = 0L
    }
    engine.feed(startVersion, endVersion, endAttempt, None) { header =>
      val families = ColumnFamilies.fromJson(header)
      family = families.get(familyName.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME)).fold(-1)(_.id)
      offer(Families(families))
    } { (version, cf, op, keyAddress, keyLength, valueAddress, valueLength) =>
      if (cf == family) {
        chunk(count) = Received(
          version,
          op,
          Bytes.copy(null, keyAddress, keyLength),
          Bytes.copy(null, valueAddress, valueLength)
        )
        count += 1
        bytes += keyLength + valueLength
        if (count == ChunkRows || bytes >= ChunkBytes) flush()
      }
    }
    flush()
  }

  private def offer(message: Message): Unit = {
    var placed = false
    while (!placed) {
      if (stopped) throw new LaminaError(LaminaError.EngineCancelled, "the reader of the change feed is gone")
      placed = queue.offer(message, 1, TimeUnit.SECONDS)
    }
  }

  private def decode(received: Received): Iterator[Row] = {
    val batch = received.version - 1
    // Codecs read off-heap rows, so the two byte arrays go through one short-lived allocation.
    val keyLength = received.key.length
    val valueLength = received.value.length
    val memory = Platform.allocateMemory(keyLength + valueLength + 8L)
    try {
      Platform.copyMemory(received.key, Platform.BYTE_ARRAY_OFFSET, null, memory, keyLength)
      val value = memory + keyLength
      Platform.copyMemory(received.value, Platform.BYTE_ARRAY_OFFSET, null, value, valueLength)
      val key = codec.decodeKey(memory, keyLength).copy()
      def values: Iterator[UnsafeRow] =
        if (codec.multiValue) codec.decodeValues(memory, keyLength, value, valueLength)
        else Iterator.single(codec.decodeValue(memory, keyLength, value, valueLength))
      val rows = received.op match {
        case Ops.Delete => Seq(Row(RecordType.DELETE_RECORD, key, null, batch))
        case Ops.Append => values.map(row => Row(RecordType.MERGE_RECORD, key, row.copy(), batch)).toList
        // The first element of a list puts, the others append.
        case Ops.Put => values.zipWithIndex.map { case (row, index) =>
            Row(if (index == 0) RecordType.PUT_RECORD else RecordType.MERGE_RECORD, key, row.copy(), batch)
          }.toList
        case other => throw new LaminaError(LaminaError.FileVersion, s"unknown operation $other in the change feed")
      }
      rows.iterator
    } finally Platform.freeMemory(memory)
  }
}

object ChangeFeed {
  private val QueuedChunks = 4

  /** A chunk ends with the row by which it has so many, or so many bytes of keys and values. */
  private val ChunkRows = 1024
  private val ChunkBytes = 1L << 20

  private final case class Received(version: Long, op: Byte, key: Array[Byte], value: Array[Byte])
  private final case class Row(record: RecordType.Value, key: UnsafeRow, value: UnsafeRow, batch: Long)

  private sealed trait Message
  private final case class Families(families: ColumnFamilies) extends Message
  private final case class Chunk(rows: Array[Received]) extends Message
  private final case class End(error: Throwable) extends Message
}
