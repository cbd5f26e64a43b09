package org.apache.spark.sql.lamina

import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.SparkConf
import org.apache.spark.sql.lamina.table.PagePool
import org.apache.spark.sql.lamina.wire.{Engine, ProcessSettings}

/**
 * The off-heap memory of this JVM's tables. There is one cap for all queries: the first store that opens fixes it, a
 * later one may leave it out, and another value is an error that names both.
 */
object StatePool {
  private val Names = Seq("heap.maxBytes")
  private var pool: PagePool = _
  private var fixed: Map[String, Option[String]] = Map.empty

  /** How many tables share what belongs to no table. */
  val tables = new AtomicInteger()

  def get(settings: StoreSettings, conf: SparkConf): PagePool = synchronized {
    val wanted = Names.map(name => name -> settings.get(name)).toMap
    val outdated = pool == null || (Engine.mayChange && wanted != fixed)
    if (!outdated) for (name <- Names; now <- wanted(name) if !fixed(name).contains(now)) {
      val key = StoreSettings.Prefix + name
      throw ProcessSettings.conflict(key, fixed(name), "the first store of this JVM opened", now)
    }
    if (outdated) {
      val created = new PagePool(HeapCap.resolve(settings.get("heap.maxBytes"), conf, Machine.current()))
      created.onPressure(() => TableRegistry.ofExecutor.evictOne())
      fixed = wanted
      if (pool != null) pool.trim()
      pool = created
    }
    pool
  }
}
