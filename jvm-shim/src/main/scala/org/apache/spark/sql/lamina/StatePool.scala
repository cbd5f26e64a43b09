package org.apache.spark.sql.lamina

import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.SparkConf
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.{PagePool, SystemMemory}
import org.apache.spark.sql.lamina.wire.{Engine, ProcessSettings}

/**
 * The off-heap memory of this JVM's tables. There is one cap for all queries: the first store that opens fixes it, a
 * later one may leave it out, and another value is an error that names both.
 *
 * Tables that stand on tables of RocksDB have a cap of their own where the user says so, and a part of the one of all tables
 * else. In both cases blocks of RocksDB's have a share of it. The two caps of one JVM fit beside its Java heap together.
 */
object StatePool {
  private val pools = new StatePools(Machine.current())

  /** How many tables share what belongs to no table. */
  val tables = new AtomicInteger()

  def get(settings: StoreSettings, conf: SparkConf): PagePool = pools.get(settings, conf)
}

/** The pools of one JVM, on a machine. Thread-safe. */
private[lamina] final class StatePools(machine: => Machine) {
  import StatePools._

  private val heap = new Pool(
    Seq(Cap),
    (settings, conf) => new PagePool(HeapCap.resolve(settings.get(Cap), conf, machine, Cap, own))
  )
  private val layered = new Pool(Seq(Fixed, Ratio), ofLayered)

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

  /** The cap of their own that tables on RocksDB have, by the setting's name. */
  private var own: Option[(String, Long)] = None

  private def ofLayered(settings: StoreSettings, conf: SparkConf): PagePool = {
    val ofRows = settings.ratio(Ratio, 0.5)
    val has = hasOwn(settings)
    val (pool, blocks) =
      if (has) {
        val budget = HeapCap.resolve(settings.get(Fixed), conf, machine, Fixed, setForAll)
        beside(budget)
        own = Some(Fixed -> budget)
        val blocks = blocksOf(budget, ofRows)
        (new PagePool(budget - blocks, SystemMemory.Native, Fixed), blocks)
      } else {
        own = None
        val pool = heap.get(settings, conf)
        (pool, blocksBeside(pool, ofRows))
      }
    sharesHeap = !has
    BlockCache.set(blocks)
    pool
  }

  /** The cap of all tables, where somebody has set it. */
  private def setForAll: Option[(String, Long)] =
    Option(heap.current).filter(_ => HeapCap.chosen(heap.setting(Cap)).isDefined).map(pool => Cap -> pool.maxBytes)

  /** Takes a budget of its own out of what all tables have, where nobody has set that. */
  private def beside(budget: Long): Unit = Option(heap.current).foreach { pool =>
    val wanted = if (setForAll.isDefined) 0L else budget
    pool.makeRoom(wanted)
    if (pool.setAside(room => if (room < wanted) 0L else wanted) < wanted) {
      val prefix = StoreSettings.Prefix
      throw new LaminaError(
        LaminaError.MemoryCap,
        s"$prefix$Fixed is ${budget >> 20} MiB, but of the ${pool.maxBytes >> 20} MiB that $prefix$Cap is by itself all but " +
          s"${(pool.maxBytes - pool.reservedBytes) >> 20} MiB are in use: set $prefix$Cap, too, so that both fit beside the " +
          "Java heap, or raise the memory"
      )
    }
  }

  /** One pool, with the settings that fix it. */
  private final class Pool(names: Seq[String], create: (StoreSettings, SparkConf) => PagePool) {
    private var pool: PagePool = _
    private var fixed: Map[String, Option[String]] = Map.empty

    def current: PagePool = pool

    /** What a setting was when it was fixed. */
    def setting(name: String): Option[String] = fixed(name)

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

private[lamina] object StatePools {
  private val Cap = "heap.maxBytes"
  private val Fixed = "rocksdb.memory.fixedPerExecutorBytes"
  private val Ratio = "rocksdb.memory.writeBufferRatio"

  /** Without some room each read would read indexes and filters again. */
  private val LeastBlocks = 4L << 20

  /** What blocks have of a budget of which a part is for rows: within it, also where that part is nearly all. */
  def blocksOf(budget: Long, ofRows: Double): Long =
    math.max(budget - (budget * ofRows).toLong, leastOf(budget))

  private def leastOf(budget: Long): Long = math.min(LeastBlocks, budget / 2)

  /** Sets aside what they have beside rows that are in a pool already. */
  def blocksBeside(pool: PagePool, ofRows: Double): Long = {
    pool.makeRoom(blocksOf(pool.maxBytes, ofRows))
    pool.setAside(room => math.max(blocksOf(room, ofRows), leastOf(pool.maxBytes)))
  }

  /** Whether tables on RocksDB have a cap of their own. */
  private def hasOwn(settings: StoreSettings): Boolean = HeapCap.chosen(settings.get(Fixed)).isDefined
}
