package org.apache.spark.sql.lamina

import org.apache.spark.SparkConf
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.PagePool

/** Stores on tables of RocksDB whose rows are more than the memory that they have, on the engine of this repository. */
class LayeredMemorySuite extends ProviderFixture {
  private val MaxBytes = 12L << 20
  private val RowsPerBatch = 8000
  private val Batches = 40

  private def newPool(): PagePool = {
    val pool = new PagePool(MaxBytes)
    pool.onPressure(() => Reclaimer.makeRoom(TableRegistry.ofExecutor, pool))
    pool
  }

  private final class SmallProvider(pool: PagePool) extends StreamingProvider {
    override private[lamina] def newPool(settings: StoreSettings, conf: SparkConf): PagePool = pool
  }

  private def small(pool: PagePool, every: Int = 900): SmallProvider = init(
    new SmallProvider(pool),
    newId(),
    settings = Map("backend" -> "rocksdb", "rocksdb.materializeEvery" -> every.toString)
  )

  private def metric(store: StateStore, name: String): Long =
    store.metrics.customMetrics.collectFirst { case (metric, value) if metric.name == name => value }.get

  /**
   * Runs batches of new keys, a quarter of which change keys of the batch before; the id and the rows of the last version, and how
   * many opens waited.
   */
  private def run(
      provider: LaminaStateStoreProvider,
      pool: PagePool,
      batches: Int
  ): (Option[String], Map[Long, Int], Long) = {
    var base = Option.empty[String]
    var expected = Map.empty[Long, Int]
    var waits = 0L
    for (version <- 0 until batches) {
      val store = provider.getStore(version, base)
      val rows = (0 until RowsPerBatch).map { row =>
        val batch = if (row % 4 == 0) math.max(0, version - 1) else version
        (batch * RowsPerBatch + row).toLong -> (version + 1)
      }
      rows.foreach { case (at, number) => put(store, at -> number) }
      store.commit()
      expected ++= rows
      waits += metric(store, "laminaMemoryWaits")
      base = attempt(store)
      assert(pool.reservedBytes <= MaxBytes)
    }
    check(provider, batches, base, expected)
    (base, expected, waits)
  }

  private def check(
      provider: LaminaStateStoreProvider,
      version: Int,
      id: Option[String],
      rows: Map[Long, Int]
  ): Unit = {
    val store = provider.getReadStore(version, id)
    assert(contents(store) == rows)
    store.release()
  }

  test("a state larger than its memory: batches wait until what the one before has changed is in tables") {
    val pool = newPool()
    val provider = small(pool)
    try {
      val (_, rows, waits) = run(provider, pool, Batches)
      // more than there is room for: a row has a header, a key and a value of 16 bytes each
      assert(rows.size * 56L > MaxBytes)
      assert(waits > 0 && waits < Batches)
    } finally provider.close()
  }

  test("a batch that was refused memory waits in its next attempt, and has room then") {
    val pool = newPool()
    val provider = small(pool)
    try {
      // neither so much that the store asks for tables, nor so much that it waits for them
      val (base, rows, _) = run(provider, pool, 9)
      assert(!pool.isNearlyFull)
      val large = (0 until 85000).map(row => (1L << 40) + row -> row)
      def attempted(): StateStore = {
        val store = provider.getStore(9, base)
        try large.foreach { case (at, number) => put(store, at -> number) }
        catch { case error: Throwable => store.abort(); throw error }
        store
      }
      assert(intercept[LaminaError](attempted()).kind == LaminaError.MemoryCap)
      val store = attempted()
      store.commit()
      assert(metric(store, "laminaMemoryWaits") == 1)
      check(provider, 10, attempt(store), rows ++ large)
    } finally provider.close()
  }

  test("stores that are at rest give up rows that are on the disk, too") {
    val pool = newPool()
    val first = small(pool, every = 1)
    val second = small(pool)
    def held(provider: LaminaStateStoreProvider, version: Int, id: Option[String]): Long = {
      val store = provider.getReadStore(version, id)
      try metric(store.asInstanceOf[StateStore], "laminaPageBytes")
      finally store.release()
    }
    try {
      val (id, rows, _) = run(first, pool, 10)
      val before = held(first, 10, id)
      run(second, pool, Batches)
      assert(held(first, 10, id) < before / 2)
      check(first, 10, id, rows)
    } finally {
      first.close()
      second.close()
    }
  }

  test("with each batch materialized the tables hold the version before") {
    val pool = new PagePool(256L << 20)
    val provider = small(pool, every = 1)
    try {
      val (_, _, waits) = run(provider, pool, 5)
      assert(waits == 4)
    } finally provider.close()
  }
}
