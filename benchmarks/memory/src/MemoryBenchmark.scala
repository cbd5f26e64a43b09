// Off-heap bytes a row of the table while it grows and while it is updated, and the longest single call inside a
// transaction: one JVM, one JSON line.
package lamina.benchmarks.memory

import java.lang.management.ManagementFactory

import org.apache.spark.sql.lamina.table.{PagePool, StoreTable}
import org.apache.spark.unsafe.Platform

import lamina.benchmarks.micro.{KeyBlock, Subject}

object MemoryBenchmark {
  private val Batch = 50000
  private val ValueOffset = Platform.BYTE_ARRAY_OFFSET.toLong

  /**
   * One look at the memory: rows, bytes a row beyond key and value, and the parts in bytes a row; `waiting` is what the
   * pool holds beside the table's own: free pages, and free cells in pages.
   */
  private final case class Sample(
      rows: Long, overhead: Double, pages: Double, dead: Double, index: Double, undo: Double, waiting: Double) {
    def json: String = s"""{"rows": $rows, "overhead": $overhead, "pages": $pages, "dead": $dead, """ +
      s""""index": $index, "undo": $undo, "waiting": $waiting}"""
  }

  def main(arguments: Array[String]): Unit = {
    val keys = arguments(0).toInt
    val updates = arguments(1).toInt
    val heapAtStart = heapAfterCollection()
    val pool = new PagePool(16L << 30)
    val table = new StoreTable(pool)
    val family = table.addFamily(0, ordered = false, multiValue = false)
    val value = new Array[Byte](KeyBlock.ValueBytes)
    var longest, longestMaintain = 0L

    def sample(): Sample = {
      val memory = table.memory
      val rows = table.rows(0)
      def each(bytes: Long): Double = bytes.toDouble / rows
      Sample(
        rows, each(memory.total - table.keyValueBytes(0)), each(memory.pageBytes), each(memory.deadBytes),
        each(memory.indexBytes), each(memory.undoBytes), each(pool.reservedBytes - memory.total))
    }

    /** One transaction; every put is timed on its own. */
    def transaction(block: KeyBlock, stamp: Long): Sample = {
      table.begin()
      var i = 0
      while (i < block.count) {
        KeyBlock.writeValue(value, stamp + i)
        val start = System.nanoTime()
        family.put(block.bytes, block.offset(i), KeyBlock.KeyBytes, value, ValueOffset, KeyBlock.ValueBytes)
        longest = math.max(longest, System.nanoTime() - start)
        i += 1
      }
      val inside = sample()
      table.changeSet((_, _, _, _, _, _, _, _) => ())
      table.commit()
      var goesOn = true
      while (goesOn) {
        val start = System.nanoTime()
        goesOn = table.maintain(4)
        longestMaintain = math.max(longestMaintain, System.nanoTime() - start)
      }
      inside
    }

    // the first hundred thousand rows are not judged: a page and an index segment weigh too much for so few
    val growth = Seq.newBuilder[(Sample, Sample)]
    (0 until keys by Batch).foreach { from =>
      val block = new KeyBlock(Array.tabulate(math.min(Batch, keys - from))(i => (from + i).toLong))
      val inside = transaction(block, from.toLong)
      if (from >= 100000) growth += inside -> sample()
    }
    val grown = growth.result()
    val growthPause = longest
    val growthMaintain = longestMaintain
    longest = 0L
    longestMaintain = 0L
    val heapGrown = heapAfterCollection()
    val random = new java.util.SplittableRandom(7)
    val updated = (1 to updates).map { n =>
      transaction(new KeyBlock(Array.fill(Batch)(random.nextLong(keys.toLong))), n.toLong) -> sample()
    }
    val all = grown ++ updated
    val worst = all.flatMap { case (inside, after) => Seq(inside, after) }.maxBy(_.overhead)
    val average = all.map(_._2.overhead).sum / all.size
    val curve = all.map { case (inside, after) => s"[${after.rows}, ${after.overhead}, ${inside.overhead}]" }
    println(
      s"""RESULT {"key_value_bytes": ${KeyBlock.KeyBytes + KeyBlock.ValueBytes}, "average": $average, """ +
        s""""grown": ${grown.last._2.json}, "after_updates": ${updated.last._2.json}, "worst": ${worst.json}, """ +
        s""""longest_put_growing_ms": ${growthPause / 1e6}, "longest_put_updating_ms": ${longest / 1e6}, """ +
        s""""longest_maintain_growing_ms": ${growthMaintain / 1e6}, """ +
        s""""longest_maintain_updating_ms": ${longestMaintain / 1e6}, """ +
        s""""heap_at_start": $heapAtStart, "heap_grown": $heapGrown, """ +
        s""""digest": "${Subject.digest(family)}", "curve": [${curve.mkString(", ")}]}""")
  }

  private def heapAfterCollection(): Long = {
    System.gc()
    ManagementFactory.getMemoryMXBean.getHeapMemoryUsage.getUsed
  }
}
