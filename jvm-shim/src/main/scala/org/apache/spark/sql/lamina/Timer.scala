package org.apache.spark.sql.lamina

import java.util.concurrent.{Executors, TimeUnit}

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.wire.DaemonThreads

/** Short work that is due later, such as what ends a table's stay: one thread for all stores of this JVM. */
private[lamina] object Timer extends Logging {
  private lazy val executor = Executors.newSingleThreadScheduledExecutor(DaemonThreads("lamina-timer"))

  def after(milliseconds: Long)(work: => Unit): Unit = {
    val logged: Runnable = () =>
      try work
      catch { case NonFatal(error) => logWarning("Memory or a table of a store could not be given up", error) }
    executor.schedule(logged, milliseconds, TimeUnit.MILLISECONDS)
  }
}
