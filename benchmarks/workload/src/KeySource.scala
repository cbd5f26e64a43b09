// A streaming source that makes (key, amount) rows out of their position and keeps none of them.
//
// Batches come in three phases: `preload` batches that together name every key once, `steady` batches of `rows`
// random keys, and one closing batch of evenly spaced keys. With `order=sequence` the keys of all batches count on from
// 0 instead, `keys` of them in the preload. A batch is offered only after `KeyGate.release`, so that the driver can read
// clocks and file sizes exactly between two batches. The same rows can be read as a batch table.
package lamina.benchmarks.workload

import java.util.{Map => JavaMap, Set => JavaSet}

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter
import org.apache.spark.sql.connector.catalog.{SupportsRead, Table, TableCapability, TableProvider}
import org.apache.spark.sql.connector.expressions.Transform
import org.apache.spark.sql.connector.read._
import org.apache.spark.sql.connector.read.streaming.{MicroBatchStream, Offset, ReadLimit, SupportsAdmissionControl}
import org.apache.spark.sql.execution.streaming.runtime.LongOffset
import org.apache.spark.sql.types.{LongType, StructType}
import org.apache.spark.sql.util.CaseInsensitiveStringMap

/** How many batches the source may offer; set by the driver between batches. */
object KeyGate {
  @volatile private var released = 0L
  def release(batches: Long): Unit = released = batches
  def get: Long = released
}

/** Which rows a run consists of. */
final case class Workload(keys: Long, rows: Long, preload: Int, steady: Int, closing: Long, sequence: Boolean) {
  def batches: Int = preload + steady + 1

  def size(batch: Int): Long =
    if (batch < preload) first(batch + 1) - first(batch) else if (batch < preload + steady) rows else closing

  def key(batch: Int, row: Long): Long =
    if (batch < preload) first(batch) + row
    else if (sequence) keys + (batch - preload) * rows + row
    else if (batch < preload + steady) java.lang.Long.remainderUnsigned(Workload.mix(batch, row), keys)
    else row * (keys / closing)

  private def first(batch: Int): Long = keys * batch / preload
}

object Workload {
  val Schema: StructType = new StructType().add("k", LongType, nullable = false).add("v", LongType, nullable = false)

  def of(options: CaseInsensitiveStringMap): Workload = Workload(
    options.getLong("keys", 0), options.getLong("rows", 0), options.getInt("preload", 1),
    options.getInt("steady", 0), options.getLong("closing", 1), options.get("order") == "sequence")

  /** The finalizer of SplitMix64 over the position of a row. */
  def mix(batch: Int, row: Long): Long = {
    var z = (batch.toLong << 40) + row + 0x9e3779b97f4a7c15L
    z = (z ^ (z >>> 30)) * 0xbf58476d1ce4e5b9L
    z = (z ^ (z >>> 27)) * 0x94d049bb133111ebL
    z ^ (z >>> 31)
  }
}

final class KeySource extends TableProvider {
  override def inferSchema(options: CaseInsensitiveStringMap): StructType = Workload.Schema

  override def getTable(
      rowSchema: StructType,
      partitioning: Array[Transform],
      properties: JavaMap[String, String]): Table =
    new Table with SupportsRead {
      override def name(): String = "keys"
      override def schema(): StructType = Workload.Schema
      override def capabilities(): JavaSet[TableCapability] =
        JavaSet.of(TableCapability.MICRO_BATCH_READ, TableCapability.BATCH_READ)
      override def newScanBuilder(options: CaseInsensitiveStringMap): ScanBuilder =
        () => new KeyScan(Workload.of(options))
    }
}

final class KeyScan(workload: Workload) extends Scan with Batch {
  override def readSchema(): StructType = Workload.Schema
  override def toBatch: Batch = this
  override def planInputPartitions(): Array[InputPartition] = KeySlice.split(workload, 0, workload.batches)
  override def createReaderFactory(): PartitionReaderFactory = KeyReaderFactory
  override def toMicroBatchStream(checkpointLocation: String): MicroBatchStream = new KeyStream(workload)
}

final class KeyStream(workload: Workload) extends MicroBatchStream with SupportsAdmissionControl {
  override def initialOffset(): Offset = LongOffset(0)

  // the start is where the query stands, also where it has just come back from its checkpoint
  override def latestOffset(start: Offset, limit: ReadLimit): Offset = {
    val from = start.asInstanceOf[LongOffset].offset
    LongOffset(math.max(from, math.min(from + 1, math.min(KeyGate.get, workload.batches))))
  }

  override def latestOffset(): Offset = throw new UnsupportedOperationException("a query says where it stands")
  override def deserializeOffset(json: String): Offset = LongOffset(json.toLong)

  override def planInputPartitions(start: Offset, end: Offset): Array[InputPartition] =
    KeySlice.split(workload, start.asInstanceOf[LongOffset].offset.toInt, end.asInstanceOf[LongOffset].offset.toInt)

  override def createReaderFactory(): PartitionReaderFactory = KeyReaderFactory
  override def commit(end: Offset): Unit = ()
  override def stop(): Unit = ()
}

final case class KeySlice(workload: Workload, batch: Int, from: Long, until: Long) extends InputPartition

object KeySlice {
  /** Two slices for each batch of [start, end). */
  def split(workload: Workload, start: Int, end: Int): Array[InputPartition] =
    (start until end).flatMap { batch =>
      val size = workload.size(batch)
      Seq(KeySlice(workload, batch, 0, size / 2), KeySlice(workload, batch, size / 2, size))
    }.toArray
}

object KeyReaderFactory extends PartitionReaderFactory {
  override def createReader(partition: InputPartition): PartitionReader[InternalRow] = {
    val slice = partition.asInstanceOf[KeySlice]
    new PartitionReader[InternalRow] {
      private val writer = new UnsafeRowWriter(2, 0)
      private var row = slice.from - 1

      override def next(): Boolean = { row += 1; row < slice.until }

      override def get(): InternalRow = {
        writer.reset()
        writer.zeroOutNullBytes()
        writer.write(0, slice.workload.key(slice.batch, row))
        writer.write(1, Workload.mix(slice.batch + 4096, row) >>> 44)
        writer.getRow
      }

      override def close(): Unit = ()
    }
  }
}
