// What a child of the restore benchmark calls: build a chain, or restore one with a clock running.
package lamina.benchmarks.restore

import java.util.UUID

import org.apache.spark.sql.classic.SparkSession

object RestoreBenchmark {

  /** Builds a first version and `increments` more; returns the ids of the last, separated by commas. */
  def build(spark: SparkSession, checkpoint: String, shape: Shape, increments: Int): String = {
    val run = UUID.randomUUID().toString
    var ids = Array.fill(shape.partitions)("")
    (0 to increments).foreach(version => ids = Chain.batch(spark, checkpoint, shape, run, version.toLong, ids))
    ids.mkString(",")
  }

  /**
   * Opens a version with new providers, runs batches on it and scans the result.
   *
   * @return JSON: nanoseconds of the first batch, which includes opening, of each later one, and of the scan; and the
   *   processor time in milliseconds that the first batch took, by who used it
   */
  def restore(
      spark: SparkSession,
      checkpoint: String,
      shape: Shape,
      version: Long,
      text: String,
      batches: Int): String = {
    val run = UUID.randomUUID().toString
    var ids = text.split(",", -1)
    val before = Processor.now()
    var processor = before
    val times = (0 to batches).map { n =>
      ids = Chain.batch(spark, checkpoint, shape, run, version + n, ids)
      val took = Chain.sinceBegun
      if (n == 0) processor = Processor.now() - before
      took
    }
    val start = System.nanoTime()
    val found = Chain.scan(spark, checkpoint, shape, version + batches + 1, ids)
    val scan = System.nanoTime() - start
    s"""{"first": ${times.head}, "steady": [${times.tail.mkString(", ")}], "scan": $scan, """ +
      s""""processor": ${processor.json}, """ +
      s""""plain": "${found.plainRows}:${found.plainHash}", "lists": "${found.listRows}:${found.listHash}"}"""
  }

  def shape(partitions: Int, keys: Int, batchRows: Int, lists: Boolean): Shape =
    Shape(partitions, keys, batchRows, lists)
}
