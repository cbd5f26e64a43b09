package org.apache.spark.sql.lamina

import java.util.concurrent.locks.Lock

/**
 * How threads of a store wait for each other, by which clock, and who reclaims in the background. A test brings one that
 * lets threads go on in an order of its own.
 */
private[lamina] trait Scheduling {

  /** Monotonic, in nanoseconds. */
  def nanoTime(): Long

  /** Takes a lock that another thread may hold for long; can be interrupted. */
  def acquire(lock: Lock): Unit

  /** Waits for a change of what `monitor` guards, under it; for `milliseconds` at most where that is not 0. */
  def await(monitor: AnyRef, milliseconds: Long): Unit

  /** Reclaims in the background what the last transaction of a table left. */
  def reclaim(table: LiveTable): Unit
}

private[lamina] object Scheduling {

  /** That of the JVM. */
  object Threads extends Scheduling {
    override def nanoTime(): Long = System.nanoTime()
    override def acquire(lock: Lock): Unit = lock.lockInterruptibly()
    override def await(monitor: AnyRef, milliseconds: Long): Unit = monitor.wait(milliseconds)
    override def reclaim(table: LiveTable): Unit = Reclaimer.submit(table)
  }
}
