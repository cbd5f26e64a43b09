package org.apache.spark.sql.lamina

import java.util.concurrent.{Executors, TimeUnit}

import org.apache.spark.sql.lamina.wire.DaemonThreads

/** Short work that is due later, such as what ends a table's stay: one thread for all stores of this JVM. */
private[lamina] object Timer {
  private lazy val executor = Executors.newSingleThreadScheduledExecutor(DaemonThreads("lamina-timer"))

  def after(milliseconds: Long)(work: => Unit): Unit = {
    val guarded: Runnable = () => DaemonThreads.guarded("What gives up memory or a table of a store")(work)
    executor.schedule(guarded, milliseconds, TimeUnit.MILLISECONDS)
    ()
  }
}
