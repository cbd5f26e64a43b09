package org.apache.spark.sql.lamina

import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicInteger

import org.apache.spark.SparkConf
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.PagePool
import org.apache.spark.sql.lamina.wire.Engine

/**
 * The off-heap memory of this JVM's tables. There is one cap for all queries: the first store that opens fixes it, a
 * later one may leave it out, and another value is an error that names both.
 */
object StatePool {
  private val Names = Seq("heap.maxBytes", "heap.quarantineMs")
  private var pool: PagePool = _
  private var fixed: Map[String, Option[String]] = Map.empty

  /** How many tables share what belongs to no table. */
  val tables = new AtomicInteger()

  def get(settings: StoreSettings, conf: SparkConf): PagePool = synchronized {
    val wanted = Names.map(name => name -> settings.get(name)).toMap
    val outdated = pool == null || (Engine.mayChange && wanted != fixed)
    if (!outdated) Names.find(name => wanted(name).exists(!fixed(name).contains(_))).foreach { name =>
      def shown(values: Map[String, Option[String]]): String = values(name).fold("not set")(value => s"'$value'")
      throw new LaminaError(
        LaminaError.SettingsConflict,
        s"${StoreSettings.Prefix}$name was ${shown(fixed)} when the first store of this JVM opened and is " +
          s"${shown(wanted)} now; it holds for all queries of a JVM, so set the same everywhere or restart the application"
      )
    }
    if (outdated) {
      val created = new PagePool(
        HeapCap.resolve(settings.get("heap.maxBytes"), conf, Machine.current()),
        settings.long("heap.quarantineMs", 1000L),
        () => TimeUnit.NANOSECONDS.toMillis(System.nanoTime())
      )
      created.onPressure(() => TableLease.releaseMemory())
      fixed = wanted
      pool = created
    }
    pool
  }
}
