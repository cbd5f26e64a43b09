package org.apache.spark.sql.lamina.table

import scala.collection.mutable

import org.scalatest.BeforeAndAfterAll
import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SparkConf
import org.apache.spark.sql.execution.streaming.state.StateStoreConf
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.lamina.{BlockCache, Machine, StatePools, StoreSettings}
import org.apache.spark.sql.lamina.errors.LaminaError

/** The caps of all tables, of those on RocksDB and of RocksDB's blocks, where one JVM has all of them. */
class SharedCapsSuite extends AnyFunSuite with BeforeAndAfterAll {
  private val mib = 1L << 20
  private val conf = new SparkConf(loadDefaults = false)

  override def afterAll(): Unit = BlockCache.set(64 * mib)

  private def pools(): StatePools = new StatePools(Machine(limit = 4096 * mib, container = true, jvmHeap = 1024 * mib))

  private def settings(all: (String, String)*): StoreSettings = {
    val sql = new SQLConf
    all.foreach { case (name, value) => sql.setConfString(StoreSettings.Prefix + name, value) }
    new StoreSettings(new StateStoreConf(sql))
  }

  private val onTables = "backend" -> "rocksdb"

  /** Takes all that a pool has, in pieces. */
  private def fill(pool: PagePool): mutable.Buffer[Long] = {
    val pieces = mutable.Buffer.empty[Long]
    try while (true) pieces += pool.allocate(mib)
    catch { case error: LaminaError => assert(error.kind == LaminaError.MemoryCap) }
    pieces
  }

  private def refusal(work: => Any): String = {
    val error = intercept[LaminaError](work)
    assert(error.kind == LaminaError.MemoryCap)
    error.getMessage
  }

  test("blocks have some room beside rows that fill the cap, and rows have what is left") {
    val all = pools()
    val heap = all.get(settings("heap.maxBytes" -> "64m"), conf)
    val pieces = fill(heap)
    assert(all.get(settings("heap.maxBytes" -> "64m", onTables), conf) eq heap)
    assert(heap.tableBytes == 60 * mib)
    pieces.foreach(heap.free(_, mib))
    assert(fill(heap).size == 60)
  }

  test("rows have half of the memory of tables, or the part that is set, and blocks have the rest") {
    for ((ratio, part) <- Seq(None -> 0.5, Some("0.25") -> 0.25, Some("0.9") -> 0.9)) {
      val set = Seq(onTables) ++ ratio.map("rocksdb.memory.writeBufferRatio" -> _)
      val own = pools().get(settings(set :+ ("rocksdb.memory.fixedPerExecutorBytes" -> "256m"): _*), conf)
      val shared = pools().get(settings(set :+ ("heap.maxBytes" -> "256m"): _*), conf)
      for (bytes <- Seq(own.maxBytes, shared.tableBytes)) assert(math.abs(bytes - part * 256 * mib) <= 1, ratio)
    }
  }

  test("tables at rest make room for the share of blocks, and no more of them than it takes") {
    for (atRest <- Seq(10, 64)) {
      val heap = new PagePool(64 * mib)
      val pieces = fill(heap)
      val filled = pieces.size
      heap.onPressure { () =>
        val gives = pieces.size > filled - atRest
        if (gives) heap.free(pieces.remove(0), mib)
        gives
      }
      val blocks = StatePools.blocksBeside(heap, 0.5)
      // half of what is free, or half of all
      if (atRest == 10) assert(pieces.size == filled - 10 && blocks >= 4 * mib && blocks <= 8 * mib)
      else assert(pieces.size > 20 && blocks >= 16 * mib)
    }
  }

  test("two caps that are set fit beside the Java heap together, or the second one is refused by the names of both") {
    val both = Seq("heap.maxBytes", "rocksdb.memory.fixedPerExecutorBytes")
    val (rows, tables) = (settings("heap.maxBytes" -> "2g"), settings(onTables, both(1) -> "2g"))
    for ((first, second) <- Seq((rows, tables), (tables, rows))) {
      val all = pools()
      all.get(first, conf)
      val error = refusal(all.get(second, conf))
      both.foreach(name => assert(error.contains(name)))
    }
    val all = pools()
    all.get(rows, conf)
    assert(all.get(settings(onTables, both(1) -> "1g"), conf).maxBytes <= 1024 * mib)
  }

  test("a cap that follows from the machine's memory leaves room for one that is set, whichever comes first") {
    val (rows, tables) = (settings(), settings(onTables, "rocksdb.memory.fixedPerExecutorBytes" -> "1g"))
    val alone = pools().get(rows, conf).tableBytes
    val after = pools()
    after.get(tables, conf)
    assert(after.get(rows, conf).tableBytes == alone - 1024 * mib)
    val before = pools()
    val heap = before.get(rows, conf)
    before.get(tables, conf)
    assert(heap.tableBytes == alone - 1024 * mib)
  }

  test("a set cap is refused where rows of the other one have the memory already") {
    val all = new StatePools(Machine(limit = 2048 * mib, container = true, jvmHeap = 1024 * mib))
    val heap = all.get(settings(), conf)
    val pieces = fill(heap)
    val tables = settings(onTables, "rocksdb.memory.fixedPerExecutorBytes" -> "256m")
    val error = refusal(all.get(tables, conf))
    Seq("heap.maxBytes", "rocksdb.memory.fixedPerExecutorBytes", "256 MiB").foreach(words =>
      assert(error.contains(words))
    )
    pieces.take(260).foreach(heap.free(_, mib))
    assert(all.get(tables, conf) ne heap)
    pieces.drop(260).foreach(heap.free(_, mib))
  }
}
