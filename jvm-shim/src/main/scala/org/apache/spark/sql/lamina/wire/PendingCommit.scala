package org.apache.spark.sql.lamina.wire

import java.util.concurrent.{CompletableFuture, TimeUnit, TimeoutException}

import org.json4s.JValue

/** A commit that the engine has accepted, and what becomes of it. */
trait CommitAnswer {

  /** The id that the attempt was accepted as: its final one, whatever it was begun as. */
  def attempt: String

  /** How long it took from when everything was sent until the outcome was known, whoever asks when; to be asked once it is. */
  def tookNanos: Long

  /** Whether the outcome is known; then `await` does not wait. */
  def isDone: Boolean

  /**
   * Waits until the commit is durable and returns what the engine says of it; may be called again.
   *
   * @param isGivenUp looked at again and again: whether nobody waits any more
   * @throws errors.LaminaError why it is not durable, or `engine.lost`, `engine.deadline`
   * @throws InterruptedException if this thread is interrupted, or `isGivenUp`; the commit goes on
   */
  def await(isGivenUp: () => Boolean = () => false): JValue

  /** Runs `action` when the outcome is known. */
  def whenDone(action: () => Unit): Unit

  /** Has it not wait for long for others, since somebody waits for it who may keep those from coming. Returns at once. */
  def hurry(): Unit
}

/**
 * A commit that was accepted. Its outcome came with the acceptance, or comes by the stream of outcomes: no thread waits
 * for it unless somebody asks.
 *
 * An error that says that the engine was lost, or that the deadline passed, leaves open whether the attempt was published;
 * its id tells.
 *
 * @param requestId of the request on the wire
 */
final class PendingCommit private[wire] (
    val requestId: Long,
    override val attempt: String,
    sentNanos: Long,
    outcome: CompletableFuture[OutcomeStream.Outcome],
    cancelRequest: Long => Unit,
    hurryRequest: Long => Unit
) extends CommitAnswer {

  /** With when it was known: whoever waits may come to it much later. */
  private val timed: CompletableFuture[(OutcomeStream.Outcome, Long)] = outcome.thenApply((_, System.nanoTime()))

  override def isDone: Boolean = timed.isDone

  override def tookNanos: Long = timed.join()._2 - sentNanos

  override def await(isGivenUp: () => Boolean): JValue = {
    var known: OutcomeStream.Outcome = null
    while (known == null) {
      if (!isDone && isGivenUp()) throw new InterruptedException("nobody waits for the commit any more")
      try known = timed.get(PendingCommit.PollMs, TimeUnit.MILLISECONDS)._1
      catch { case _: TimeoutException => () }
    }
    known match {
      case Right(json) => json \ "durable"
      case Left(error) => throw error
    }
  }

  override def whenDone(action: () => Unit): Unit = {
    timed.whenComplete((_, _) => DaemonThreads.guarded("What follows a commit")(action()))
    ()
  }

  override def hurry(): Unit = if (!isDone) hurryRequest(requestId)

  /** Asks the engine to give up. `await` then tells how it ended: the commit may have become durable before. */
  def cancel(): Unit = if (!isDone) cancelRequest(requestId)
}

private object PendingCommit {
  private val PollMs = 100L
}
