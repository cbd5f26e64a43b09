// Nanoseconds of a row that is read through the shim from tables of RocksDB, and from RocksDB itself: one JSON line.
package org.apache.spark.sql.lamina

import org.rocksdb._

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.StateStore

import lamina.benchmarks.micro.KeyBlock

object BelowBenchmark {
  private val Family = StateStore.DEFAULT_COL_FAMILY_NAME
  private var checksum = 0L

  private def perRow(rows: Int)(work: => Unit): Double = {
    val started = System.nanoTime()
    work
    (System.nanoTime() - started).toDouble / rows
  }

  private def middle(values: Seq[Double]): Double = values.sorted.apply(values.size / 2)

  /** Arguments: a database for the shim, which removes it; the same for RocksDB; keys, rows a pass, passes, cache bytes. */
  def main(arguments: Array[String]): Unit = {
    val (forShim, forRocksDb) = (arguments(0), arguments(1))
    val (keys, batch, passes) = (arguments(2).toInt, arguments(3).toInt, arguments(4).toInt)
    val random = new java.util.SplittableRandom(7)
    def block(): KeyBlock = new KeyBlock(Array.fill(batch)(random.nextLong(keys.toLong)))

    val shim = new StoreWithoutEngine(
      KeyBlock.KeySchema, KeyBlock.ValueSchema, Map(StoreSettings.Prefix + "backend" -> "rocksdb"))
    // a version without rows, which then stands on all of them
    val empty = shim.open()
    val live = empty.live
    shim.commit(empty, new lamina.benchmarks.micro.CommitClock)
    // the first store of a JVM has made a cache of its own
    BlockCache.set(arguments(5).toLong)
    live.synchronized(live.table.standOn(TablesBelow.open(InPlace(forShim, 1L, None))))
    val direct = openDirect(forRocksDb)
    val reading = new ReadOptions()
    val prefixed = new Array[Byte](2 + KeyBlock.KeyBytes)
    def getDirect(of: KeyBlock): Unit = {
      var i = 0
      while (i < of.count) {
        System.arraycopy(of.bytes, i * KeyBlock.KeyBytes, prefixed, 2, KeyBlock.KeyBytes)
        val found = direct.get(reading, prefixed)
        require(found != null, "RocksDB lacks a row")
        checksum += found(8)
        i += 1
      }
    }

    def getThroughShim(of: KeyBlock, store: LaminaStateStore): Unit = {
      var i = 0
      while (i < of.count) {
        val found: UnsafeRow = store.get(of.key(i), Family)
        require(found != null, "the store lacks a row")
        checksum += found.getLong(0)
        i += 1
      }
    }

    val (cached, below, raw) = (Seq.newBuilder[Double], Seq.newBuilder[Double], Seq.newBuilder[Double])
    (1 to 3 + passes).foreach { pass =>
      // other rows for each, else the second reader finds what the first one has brought in
      val (one, other) = (block(), block())
      def ofShim(): Unit = {
        val store = shim.open()
        val first = perRow(batch)(getThroughShim(one, store))
        val second = perRow(batch)(getThroughShim(one, store))
        shim.commit(store, new lamina.benchmarks.micro.CommitClock)
        live.synchronized {
          var idle = 0
          while (idle < 1000) idle = if (live.forgetSome()) 0 else idle + 1
          require(live.table.memory.total < (8L << 20), s"${live.table.memory.total} bytes of rows are still there")
        }
        if (pass > 3) {
          below += first
          cached += second
        }
      }
      def ofRocksDb(): Unit = {
        val time = perRow(batch)(getDirect(other))
        if (pass > 3) raw += time
      }
      if (pass % 2 == 0) { ofShim(); ofRocksDb() }
      else { ofRocksDb(); ofShim() }
    }
    val found = Seq("cached" -> cached, "below" -> below, "rocksdb" -> raw).map { case (name, times) =>
      s""""$name": ${middle(times.result())}"""
    }
    println(s"""RESULT {${found.mkString(", ")}, "checksum": $checksum}""")
    // what is open is the process's, which ends
    System.out.flush()
    Runtime.getRuntime.halt(0)
  }

  /** With the same cache and the options of the shim. */
  private def openDirect(directory: String): RocksDB = RocksDB.openReadOnly(TablesBelow.newOptions(), directory)
}
