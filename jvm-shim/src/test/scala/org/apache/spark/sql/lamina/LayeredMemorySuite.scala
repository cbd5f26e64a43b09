package org.apache.spark.sql.lamina

import java.nio.file.Files

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SparkConf, SparkException}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.timers.TimerStateUtils
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreConf, StateStoreId}
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.PagePool
import org.apache.spark.sql.lamina.wire.ProcessSettings
import org.apache.spark.sql.streaming.TimeMode

/** Stores on tables of RocksDB whose rows are more than the memory that they have, on the engine of this repository. */
class LayeredMemorySuite extends ProviderFixture {
  import LayeredMemorySuite.Ran

  private val MaxBytes = 12L << 20
  private val RowsPerBatch = 8000
  private val Batches = 40

  /** So many that what each would keep after it has given up its rows takes all memory. */
  private val Stores = 24

  private def newPool(): PagePool = {
    val pool = new PagePool(MaxBytes)
    pool.onShortage(() => Reclaimer.makeRoom(TableRegistry.ofExecutor, pool, relieves = false))
    pool.onPressure(() => Reclaimer.makeRoom(TableRegistry.ofExecutor, pool))
    pool
  }

  /** @param tables whether any can be made */
  private final class SmallProvider(pool: PagePool, tables: Boolean) extends StreamingProvider {
    override private[lamina] def newPool(settings: StoreSettings, conf: SparkConf): PagePool = pool

    var engine: EngineStore = _
    override private[lamina] def newEngine(
        id: StateStoreId,
        storeConf: StateStoreConf,
        hadoopConf: Configuration,
        process: ProcessSettings,
        settings: Map[String, String]
    ): EngineStore = {
      engine =
        if (tables) super.newEngine(id, storeConf, hadoopConf, process, settings)
        else
          new EngineStore(id, storeConf, hadoopConf, process, settings) {
            override def materialize(version: Long, attempt: Option[String]): Unit =
              throw new LaminaError(LaminaError.StorageFailed, "the disk is full")

            override def takeOffered(): Option[InPlace] = {
              super.takeOffered().foreach(_.remove())
              None
            }
          }
      engine
    }
  }

  private def small(
      pool: PagePool,
      every: Int = 450,
      id: StateStoreId = newId(),
      tables: Boolean = true,
      more: Map[String, String] = Map.empty
  ): SmallProvider = init(
    new SmallProvider(pool, tables),
    id,
    settings = Map("backend" -> "rocksdb", "rocksdb.materializeEvery" -> every.toString) ++ more
  )

  private def metric(store: StateStore, name: String): Long =
    store.metrics.customMetrics.collectFirst { case (metric, value) if metric.name == name => value }.get

  private def found(store: StateStore, at: Long): Option[Int] =
    Option(store.get(key(at), family)).map(_.getInt(0))

  /**
   * Runs batches of new keys, a quarter of which change keys of the batch before; the id and the rows of the last version, how many
   * opens waited, and in how many batches changes were put on the disk.
   */
  private def run(
      provider: LaminaStateStoreProvider,
      pool: PagePool,
      batches: Int,
      rowsPerBatch: Int = RowsPerBatch
  ): Ran = {
    var base = Option.empty[String]
    var expected = Map.empty[Long, Int]
    var (waits, spills) = (0L, 0)
    for (version <- 0 until batches) {
      val store = provider.getStore(version, base)
      val rows = (0 until rowsPerBatch).map { row =>
        val batch = if (row % 4 == 0) math.max(0, version - 1) else version
        (batch * rowsPerBatch + row).toLong -> (version + 1)
      }
      rows.foreach { case (at, number) => put(store, at -> number) }
      store.commit()
      expected ++= rows
      waits += metric(store, "laminaMemoryWaits")
      if (metric(store, "laminaSpilledBytes") > 0) spills += 1
      base = attempt(store)
      assert(pool.reservedBytes <= MaxBytes)
    }
    check(provider, batches, base, expected)
    Ran(base, expected, waits, spills)
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

  test("all families of Spark's timers are held in memory where that is asked for, and no others") {
    val timers = Seq(TimeMode.ProcessingTime, TimeMode.EventTime).flatMap { mode =>
      val (byKey, byTime) = TimerStateUtils.getTimerStateVarNames(mode.toString)
      Seq(byKey, byTime)
    }
    val wanted = Map("heap" -> timers, "rocksdb" -> Nil)
    for ((where, held) <- wanted) {
      val provider = small(newPool(), more = Map("rocksdb.timers" -> where))
      try {
        val families = (timers ++ Seq("default", "timers")).map(name => TestFamilies.one.all.head.copy(name = name))
        assert(families.filter(provider.engine.layers.get.holds).map(_.name) == held)
      } finally provider.close()
    }
  }

  test("a state larger than its memory: where that is short, changes go into tables or to the disk") {
    val pool = newPool()
    val provider = small(pool)
    try {
      val Ran(_, rows, waits, spills) = run(provider, pool, Batches, 12000)
      // more than there is room for: a row has a header, a key and a value of 16 bytes each
      assert(rows.size * 56L > MaxBytes)
      assert(waits + spills > 0 && waits + spills < Batches)
    } finally provider.close()
  }

  test("where no tables can be made a batch fails by the cause before its changes are in too many places") {
    val pool = newPool()
    val provider = small(pool, tables = false)
    try {
      var base = Option.empty[String]
      var batches = 0
      val error = intercept[SparkException] {
        while (batches < 400) {
          val store = provider.getStore(batches, base)
          (0 until 16000).foreach(row => put(store, (batches * 8000 + row).toLong -> batches))
          store.commit()
          base = attempt(store)
          batches += 1
          assert(pool.reservedBytes <= MaxBytes)
        }
      }
      error.getCause match {
        case cause: LaminaError =>
          assert(cause.kind == LaminaError.StorageFailed && cause.getMessage.contains("the disk is full"))
        case other => fail(other)
      }
      assert(batches > 4 && batches < 400)
    } finally provider.close()
  }

  test("a batch that changes more than there is memory for keeps its changes on the disk") {
    val pool = newPool()
    val provider = small(pool)
    try {
      val Ran(base, rows, _, _) = run(provider, pool, 9)
      val few = rows.keys.filter(_ % 5 == 0)
      val large = (0 until 250000).map(row => (1L << 40) + row -> row)
      val again = large.filter(_._2 % 7 == 0).map { case (at, number) => at -> -number }
      val expected = rows -- few ++ large ++ again
      def attempted(): StateStore = {
        val store = provider.getStore(9, base)
        large.foreach { case (at, number) => put(store, at -> number) }
        few.foreach(at => store.remove(key(at), family))
        again.foreach { case (at, number) => put(store, at -> number) }
        assert(pool.reservedBytes <= MaxBytes)
        assert(again.take(1000).forall { case (at, number) => found(store, at).contains(number) })
        assert(few.take(1000).forall(found(store, _).isEmpty))
        assert(contents(store) == expected)
        store
      }
      attempted().abort()
      check(provider, 9, base, rows)
      val task = TestTasks.context(1)
      val store = asTask(task)(attempted())
      asTask(task) {
        store.commit()
        assert(contents(store) == expected, "the version is read on after its commit")
      }
      task.markTaskCompleted(None)
      assert(metric(store, "laminaSpilledBytes") > (1 << 20))
      check(provider, 10, attempt(store), expected)

      // who comes anew has no room for it either
      val next = small(newPool(), id = provider.stateStoreId)
      try {
        check(next, 10, attempt(store), expected)
        val last = provider.getStore(10, attempt(store))
        put(last, 7L -> 7)
        last.commit()
        assert(metric(last, "laminaSpilledBytes") == 0)
        check(provider, 11, attempt(last), expected + (7L -> 7))
      } finally next.close()
    } finally provider.close()
  }

  test("stores that together change more than there is memory for leave room for each other") {
    val pool = newPool()
    val providers = Seq.fill(Stores)(small(pool))
    try {
      var bases = Seq.fill(Stores)(Option.empty[String])
      var expected = Map.empty[Long, Int]
      for (version <- 0 until 3) {
        val rows = (0 until 40000).map(row => (version * 30000 + row).toLong -> (version + row))
        bases = providers.zip(bases).map { case (provider, base) =>
          val store = provider.getStore(version, base)
          rows.foreach { case (at, number) => put(store, at -> number) }
          store.commit()
          attempt(store)
        }
        expected ++= rows
        assert(pool.reservedBytes <= MaxBytes)
      }
      providers.zip(bases).foreach { case (provider, base) => check(provider, 3, base, expected) }
    } finally providers.foreach(_.close())
  }

  private def held(provider: LaminaStateStoreProvider, version: Int, id: Option[String]): Long = {
    val store = provider.getReadStore(version, id)
    try metric(store.asInstanceOf[StateStore], "laminaPageBytes")
    finally store.release()
  }

  test("rows go once they are in tables, after however few versions these come") {
    val pool = new PagePool(256L << 20)
    val provider = small(pool)
    try {
      var (base, expected) = (Option.empty[String], Map.empty[Long, Int])
      for (version <- 0 until 16) {
        val rows = (0 until RowsPerBatch).map(row => (version * RowsPerBatch + row).toLong -> version)
        val last = base
        base = commit(provider, version, base) { store =>
          rows.foreach(put(store, _))
          // of the version before, so that it comes below the next transaction
          if (version % 2 == 1) provider.engine.materialize(version, last)
        }
        expected ++= rows
      }
      val before = held(provider, 16, base)
      TableRegistry.ofExecutor.layeredAtRest(pool).foreach { table =>
        while (table.synchronized(table.forgetSomeAtRest())) ()
      }
      assert(held(provider, 16, base) < before / 2)
      check(provider, 16, base, expected)
    } finally provider.close()
  }

  test("changes above the tables that are lost are gone around where newer tables have them") {
    val id = newId()
    val provider = small(new PagePool(256L << 20), id = id)
    var (ids, expected) = (Vector(Option.empty[String]), Map.empty[Long, Int])
    try for (version <- 0 until 9) {
        ids :+= commit(provider, version, ids.last) { store =>
          put(store, version.toLong -> version)
          // of the version before; the commit that comes now refers to them
          if (version == 4 || version == 7) provider.engine.materialize(version, ids.last)
        }
        if (version < 7) expected += version.toLong -> version
      }
    finally provider.close()
    Files.delete(commitFiles(id)(6))
    val another = small(new PagePool(256L << 20), id = id)
    try check(another, 7, ids(7), expected)
    finally another.close()
  }

  test("stores that are at rest give up rows that are on the disk, too") {
    val pool = newPool()
    val first = small(pool, every = 1)
    val second = small(pool)
    try {
      val Ran(id, rows, _, _) = run(first, pool, 10)
      val before = held(first, 10, id)
      // rows that are nowhere else: there are none of its own to forget
      commit(second, 0, None)(store => (0 until 100000).foreach(row => put(store, row.toLong -> row)))
      assert(held(first, 10, id) < before / 2)
      check(first, 10, id, rows)
    } finally {
      first.close()
      second.close()
    }
  }

  test("a store whose changes went to the disk while it was at rest says so with its next transaction") {
    val pool = new PagePool(256L << 20)
    val provider = small(pool)
    try {
      val Ran(id, _, _, _) = run(provider, pool, 1)
      assert(!provider.engine.isDue)
      assert(Reclaimer.makeRoom(TableRegistry.ofExecutor, pool))
      val store = provider.getStore(1, id)
      assert(provider.engine.isDue)
      store.abort()
    } finally provider.close()
  }

  test("with each batch materialized the tables hold the version before") {
    val pool = new PagePool(256L << 20)
    val provider = small(pool, every = 1)
    try {
      assert(run(provider, pool, 5).waits == 4)
    } finally provider.close()
  }
}

private object LayeredMemorySuite {
  final case class Ran(id: Option[String], rows: Map[Long, Int], waits: Long, spills: Int)
}
