// Nanoseconds of thread CPU and of wall time per row for get, put and scan: one subject in one JVM, one JSON line.
package lamina.benchmarks.micro

import java.lang.management.ManagementFactory

import scala.jdk.CollectionConverters._

object MicroBenchmark {
  private val threads = ManagementFactory.getThreadMXBean
  private var checksum = 0L

  private final case class Time(cpu: Double, wall: Double)

  private def time(rows: Long)(work: => Long): Time = {
    val cpu = threads.getCurrentThreadCpuTime
    val wall = System.nanoTime()
    checksum += work
    Time((threads.getCurrentThreadCpuTime - cpu).toDouble / rows, (System.nanoTime() - wall).toDouble / rows)
  }

  private def median(times: Seq[Time]): Time = {
    def middle(values: Seq[Double]): Double = values.sorted.apply(values.size / 2)
    Time(middle(times.map(_.cpu)), middle(times.map(_.wall)))
  }

  private def collections: Long = ManagementFactory.getGarbageCollectorMXBeans.asScala.map(_.getCollectionTime).sum

  /** Random ids below `keys`, the same in every run. */
  private def random(count: Int, keys: Long, seed: Long): Array[Long] = {
    val source = new java.util.SplittableRandom(seed)
    Array.fill(count)(source.nextLong(keys))
  }

  def main(arguments: Array[String]): Unit = {
    val kind = arguments(0)
    val keys = arguments(1).toInt
    val batch = arguments(2).toInt
    val passes = arguments(3).toInt
    val value = new Array[Byte](KeyBlock.ValueBytes)
    def subject(): Subject = kind match {
      case "store" => new StoreSubject
      case "table" => new TableSubject
      case "map" => new MapSubject
    }

    def insert(into: Subject, count: Int): Seq[Time] =
      (0 until count by batch).map { from =>
        val block = new KeyBlock(Array.tabulate(math.min(batch, count - from))(i => (from + i).toLong))
        time(block.count) { into.put(block, value, from); into.commit() }
      }

    // compile every path on a small subject first, so that the large one is measured in the state a long query is in
    val small = subject()
    insert(small, math.min(keys, 4 * batch))
    (1 to 8).foreach { pass =>
      val block = new KeyBlock(random(batch, 4L * batch, pass.toLong))
      small.put(block, value, pass.toLong)
      checksum += small.commit() + small.get(block) + small.scan()
    }

    val measured = subject()
    val before = collections
    val inserted = insert(measured, keys)
    val afterInsert = collections
    measured.commitParts()
    val updates, commits, hits, misses, scans = Seq.newBuilder[Time]
    (1 to passes).foreach { pass =>
      val block = new KeyBlock(random(batch, keys.toLong, 100L + pass))
      var committed: Time = null
      updates += time(block.count) {
        measured.put(block, value, pass.toLong)
        committed = time(block.count)(measured.commit())
        0L
      }
      commits += committed
      hits += time(block.count)(measured.get(block))
      val absent = new KeyBlock(random(batch, keys.toLong, 500L + pass).map(_ + keys))
      misses += time(block.count)(measured.get(absent))
    }
    val afterUpdate = collections
    val parts = measured.commitParts().map { case (name, nanos) => s""""$name": ${nanos.toDouble / batch / passes}""" }
    (1 to 3).foreach(_ => scans += time(keys.toLong)(measured.scan()))
    require(measured.rows == keys, s"${measured.rows} rows instead of $keys")

    val all = Seq(
      "insert" -> inserted, "update" -> updates.result(), "commit_part" -> commits.result(), "get" -> hits.result(),
      "miss" -> misses.result(), "scan" -> scans.result())
    val fields = all.map { case (name, times) =>
      val middle = median(times)
      s""""$name": {"cpu_ns": ${middle.cpu}, "wall_ns": ${middle.wall}}"""
    }
    println(
      s"""RESULT {${fields.mkString(", ")}, "insert_gc_ms": ${afterInsert - before}, """ +
        s""""update_gc_ms": ${afterUpdate - afterInsert}, """ +
        s""""commit_wall_ns": {${parts.mkString(", ")}}, "checksum": $checksum, "digest": "${measured.digest()}"}""")
  }
}
