package org.apache.spark.sql.lamina

import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.SparkConf
import org.apache.spark.sql.lamina.table.{PagePool, SystemMemory}
import org.apache.spark.sql.lamina.wire.{Engine, ProcessSettings}

/**
 * The off-heap memory of this JVM's tables. There is one cap for all queries: the first store that opens fixes it, a
 * later one may leave it out, and another value is an error that names both.
 *
 * Tables that stand on tables of RocksDB have a cap of their own where the user says so, and a part of the one of all tables
 * else. In both cases blocks of RocksDB's have a share of it.
 */
object StatePool {
  private val Cap = "heap.maxBytes"
  private val Fixed = "rocksdb.memory.fixedPerExecutorBytes"
  private val Ratio = "rocksdb.memory.writeBufferRatio"

  /** Without some room each read would read indexes and filters again. */
  private val LeastBlocks = 4L << 20

  private val heap = new Pool(
    Seq(Cap),
    (settings, conf) => new PagePool(HeapCap.resolve(settings.get(Cap), conf, Machine.current()))
  )
  private val layered = new Pool(Seq(Fixed, Ratio), ofLayered)

  /** How many tables share what belongs to no table. */
  val tables = new AtomicInteger()

  def get(settings: StoreSettings, conf: SparkConf): PagePool = synchronized {
    if (!settings.isLayered) heap.get(settings, conf)
    else {
      // a part of the heap's, whatever that is set to
      if (sharesHeap && !hasOwn(settings) && (heap.get(settings, conf) ne layered.current)) layered.forget()
      layered.get(settings, conf)
    }
  }

  /** Whether tables on RocksDB have a part of the cap of all tables. */
  private var sharesHeap = false

  private def ofLayered(settings: StoreSettings, conf: SparkConf): PagePool = {
    sharesHeap = !hasOwn(settings)
    val ofRows = settings.ratio(Ratio, 0.5)
    val (pool, blocks) =
      if (!sharesHeap) {
        val budget = HeapCap.resolve(settings.get(Fixed), conf, Machine.current(), Fixed)
        val blocks = blocksOf(budget, ofRows)
        (new PagePool(budget - blocks, SystemMemory.Native, Fixed), blocks)
      } else {
        val pool = heap.get(settings, conf)
        (pool, pool.setAside(blocksOf(_, ofRows)))
      }
    BlockCache.set(blocks)
    pool
  }

  /** What blocks have of a budget of which a part is for rows: within it, also where that part is nearly all. */
  private[lamina] def blocksOf(budget: Long, ofRows: Double): Long =
    math.max(budget - (budget * ofRows).toLong, math.min(LeastBlocks, budget / 2))

  /** Whether tables on RocksDB have a cap of their own. */
  private def hasOwn(settings: StoreSettings): Boolean =
    settings.get(Fixed).map(_.trim).exists(text => !text.equalsIgnoreCase("auto"))

  /** One pool, with the settings that fix it. */
  private final class Pool(names: Seq[String], create: (StoreSettings, SparkConf) => PagePool) {
    private var pool: PagePool = _
    private var fixed: Map[String, Option[String]] = Map.empty

    def current: PagePool = pool

    /** The next store fixes it anew. */
    def forget(): Unit = pool = null

    def get(settings: StoreSettings, conf: SparkConf): PagePool = {
      val wanted = names.map(name => name -> settings.get(name)).toMap
      val outdated = pool == null || (Engine.mayChange && wanted != fixed)
      if (!outdated) for (name <- names; now <- wanted(name) if !fixed(name).contains(now)) {
        val key = StoreSettings.Prefix + name
        throw ProcessSettings.conflict(key, fixed(name), "the first store of this JVM opened", now)
      }
      if (outdated) {
        val created = create(settings, conf)
        val registry = TableRegistry.ofExecutor
        created.onShortage(() => Reclaimer.makeRoom(registry, created, relieves = false))
        created.onPressure(() => Reclaimer.makeRoom(registry, created) || registry.evictOne(_.isOf(created)))
        fixed = wanted
        if (pool != null) pool.trim()
        pool = created
      }
      pool
    }
  }
}
