package org.apache.spark.sql.lamina

import java.util.concurrent.{LinkedBlockingQueue, ThreadPoolExecutor, TimeUnit}
import java.util.concurrent.locks.LockSupport

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.wire.DaemonThreads

/**
 * Reclaims dead pages of tables after their commits, a few pages at a time, so that neither a commit nor the next open waits
 * for more than one step. One thread for all stores of this JVM; it ends when there is nothing to do.
 */
object Reclaimer extends Logging {
  private val PagesPerStep = 4

  /** Between steps, so that who waits for the table gets it. */
  private val PauseNanos = 50000L

  private val executor = {
    val pool = new ThreadPoolExecutor(
      1,
      1,
      10L,
      TimeUnit.SECONDS,
      new LinkedBlockingQueue[Runnable],
      DaemonThreads("lamina-reclaim")
    )
    pool.allowCoreThreadTimeOut(true)
    pool
  }

  /** Reclaims what the last transaction of a table left. Stops when the next one begins. */
  def submit(live: LiveTable): Unit = execute { () =>
    try while (live.synchronized(live.reclaim(PagesPerStep))) LockSupport.parkNanos(PauseNanos)
    catch {
      case error: Exception => logWarning("Pages of a table could not be reclaimed; its rows are not affected", error)
    }
  }

  /** Runs work after what has been submitted. */
  private[lamina] def execute(work: Runnable): Unit = executor.execute(work)
}
