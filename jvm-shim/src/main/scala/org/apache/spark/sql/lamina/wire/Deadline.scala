package org.apache.spark.sql.lamina.wire

import java.util.concurrent.{RejectedExecutionException, ScheduledThreadPoolExecutor, TimeUnit}

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
  private val timer = new ScheduledThreadPoolExecutor(1, DaemonThreads(name))
  timer.setRemoveOnCancelPolicy(true)
  timer.setExecuteExistingDelayedTasksAfterShutdownPolicy(false)

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
