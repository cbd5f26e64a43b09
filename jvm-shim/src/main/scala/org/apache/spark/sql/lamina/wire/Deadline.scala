package org.apache.spark.sql.lamina.wire

import java.util.concurrent.{RejectedExecutionException, ScheduledThreadPoolExecutor, TimeUnit}

import scala.collection.mutable

import org.apache.spark.sql.lamina.errors.LaminaError

/** A moment by which a request has to be answered. */
private[wire] final class Deadline private (val timeoutMs: Long, endNanos: Long) {
  def remainingMs: Long = math.max(0L, (endNanos - System.nanoTime() + 999999L) / 1000000L)
}

private[wire] object Deadline {
  def in(timeoutMs: Long): Deadline =
    new Deadline(timeoutMs, System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(timeoutMs))

  def passed(deadline: Deadline, what: String): LaminaError =
    new LaminaError(
      LaminaError.EngineDeadline,
      s"$what was not answered within ${deadline.timeoutMs} ms " +
        "(spark.sql.streaming.stateStore.lamina.engine.requestTimeoutMs)"
    )
}

/** Calls back when deadlines pass: one daemon thread for all requests of an engine. */
private[wire] final class DeadlineTimer(name: String) {
  import DeadlineTimer.Waiting

  private val timer = new ScheduledThreadPoolExecutor(1, DaemonThreads(name))
  private val watched = mutable.Set.empty[Waiting]
  private var isWatching = false
  timer.setRemoveOnCancelPolicy(true)
  timer.setExecuteExistingDelayedTasksAfterShutdownPolicy(false)

  /** Looks again and again, while `wait` runs, whether anybody still waits; runs `action` once nobody does. */
  def watching[A](isGivenUp: () => Boolean)(action: => Unit)(wait: => A): A = {
    val waiting = new Waiting(isGivenUp, () => action)
    synchronized {
      watched += waiting
      if (!isWatching) watch()
    }
    try wait
    finally synchronized { watched -= waiting; () }
  }

  /** One look at all of them, and the next while there are any. */
  private def watch(): Unit = {
    isWatching = true
    at(Deadline.in(DeadlineTimer.WatchMs)) {
      try synchronized(watched.toSeq).filter(_.isGivenUp()).foreach(_.action())
      finally synchronized { if (watched.isEmpty) isWatching = false else watch() }
    }
    ()
  }

  /** Runs `action` when `deadline` passes, unless the returned function is called before, or the timer is closed. */
  def at(deadline: Deadline)(action: => Unit): () => Unit =
    try {
      val scheduled = timer.schedule(
        (() => DaemonThreads.guarded("The end of a deadline")(action)): Runnable,
        deadline.remainingMs,
        TimeUnit.MILLISECONDS
      )
      () => { scheduled.cancel(false); () }
    } catch {
      // the engine has ended, and all its connections are closed
      case _: RejectedExecutionException => () => ()
    }

  def close(): Unit = { timer.shutdownNow(); () }
}

private[wire] object DeadlineTimer {
  private val WatchMs = 100L

  private final class Waiting(val isGivenUp: () => Boolean, val action: () => Unit)
}
