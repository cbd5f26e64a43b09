package org.apache.spark.sql.lamina.wire

import java.util.concurrent.{CompletableFuture, Executor, RejectedExecutionException, TimeUnit, TimeoutException}

import org.json4s.JValue

/** What becomes of a commit of which everything was sent. */
trait CommitAnswer {

  /**
   * Waits until the commit is durable and returns the engine's answer; may be called again.
   *
   * @param isGivenUp looked at again and again: whether nobody waits any more
   * @throws errors.LaminaError what the engine answered, or `engine.lost`, `engine.deadline`
   * @throws InterruptedException if this thread is interrupted, or `isGivenUp`; the commit goes on
   */
  def await(isGivenUp: () => Boolean = () => false): JValue

  /** Runs `action` when the outcome is known. */
  def whenDone(action: () => Unit): Unit
}

/**
 * A commit of which everything was sent and whose answer is due when it is durable.
 *
 * A thread of its own reads the answer: nobody may ever ask for it, and a thread that is interrupted closes the
 * connection on which it waits. An error that says that the engine was lost, or that the deadline passed, leaves open
 * whether the attempt was published; its id tells.
 */
final class PendingCommit private[wire] (exchange: Exchange, readers: Executor, cancelRequest: Long => Unit)
    extends CommitAnswer {
  private val result = new CompletableFuture[Either[Throwable, JValue]]

  try readers.execute(() => receive())
  catch { case _: RejectedExecutionException => receive() } // the engine has ended, so this waits for nothing

  /** Id of the request on the wire. */
  def requestId: Long = exchange.id

  /** Whether the answer has been read; then `await` does not wait. */
  def isDone: Boolean = result.isDone

  override def await(isGivenUp: () => Boolean): JValue = {
    var outcome: Either[Throwable, JValue] = null
    val deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(exchange.waitMs)
    while (outcome == null) {
      if (!isDone && isGivenUp()) throw new InterruptedException("nobody waits for the commit any more")
      try outcome = result.get(PendingCommit.PollMs, TimeUnit.MILLISECONDS)
      catch { case _: TimeoutException => if (System.nanoTime() > deadline) outcome = Left(exchange.deadlineError) }
    }
    outcome match {
      case Right(json) => json
      case Left(error) => throw error
    }
  }

  override def whenDone(action: () => Unit): Unit = {
    result.whenComplete((_, _) => DaemonThreads.guarded("What follows a commit")(action()))
    ()
  }

  /** Asks the engine to give up. `await` then tells how it ended: the commit may have become durable before. */
  def cancel(): Unit = if (!isDone) cancelRequest(requestId)

  private def receive(): Unit = {
    val answer =
      try {
        val json = exchange.readAnswer()
        exchange.done()
        Right(json)
      } catch { case error: Throwable => Left(exchange.failed(error)) }
    result.complete(answer)
    ()
  }
}

private object PendingCommit {
  private val PollMs = 100L
}
