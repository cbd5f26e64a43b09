package org.apache.spark.sql.lamina

import java.util.concurrent.locks.Lock

/**
 * How threads of a store wait for each other, by which clock, who reclaims in the background, and when a thread has left
 * its task. A test brings one that lets threads go on in an order of its own.
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

  /** Runs `action` when a thread has left a task: at once, or soon after, on another thread. */
  def whenLeft(thread: Thread, task: Long)(action: () => Unit): Unit

  /** Waits, for a moment at most, until threads that have left their tasks have brought about a condition. */
  def awaitLeft(condition: () => Boolean): Unit
}

private[lamina] object Scheduling {

  /** That of the JVM. */
  object Threads extends Scheduling {
    override def nanoTime(): Long = System.nanoTime()
    override def acquire(lock: Lock): Unit = lock.lockInterruptibly()
    override def await(monitor: AnyRef, milliseconds: Long): Unit = monitor.wait(milliseconds)
    override def reclaim(table: LiveTable): Unit = Reclaimer.submit(table)
    override def whenLeft(thread: Thread, task: Long)(action: () => Unit): Unit =
      TaskThreads.whenLeft(thread, task)(action)
    override def awaitLeft(condition: () => Boolean): Unit = TaskThreads.await(condition)
  }
}
