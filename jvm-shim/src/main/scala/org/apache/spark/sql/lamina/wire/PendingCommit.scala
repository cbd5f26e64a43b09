package org.apache.spark.sql.lamina.wire

import java.util.concurrent.{CompletableFuture, TimeUnit, TimeoutException}
import java.util.concurrent.atomic.AtomicBoolean

import org.json4s.JValue

/**
 * A commit of which everything was sent and whose answer is due when it is durable.
 *
 * Its connection is bound to it until the answer was read, by `await` or by the connection pool. An error that says
 * that the engine was lost, or that the deadline passed, leaves open whether the attempt was published; its id tells.
 */
final class PendingCommit private[wire] (exchange: Exchange, pool: ConnectionPool, cancelRequest: Long => Unit)
    extends Unanswered {
  private val claimed = new AtomicBoolean
  private val result = new CompletableFuture[Either[Throwable, JValue]]

  /** Id of the request on the wire. */
  def requestId: Long = exchange.id

  /** Whether the answer has been read; then `await` does not wait. */
  def isDone: Boolean = result.isDone

  /**
   * Waits until the commit is durable and returns the engine's answer; may be called again.
   *
   * @throws LaminaError what the engine answered, or `engine.lost`, `engine.deadline`, `engine.cancelled`
   */
  def await(): JValue = {
    receive()
    val outcome =
      try result.get(exchange.waitMs, TimeUnit.MILLISECONDS)
      catch {
        case _: TimeoutException => Left(exchange.deadlineError)
        case error: InterruptedException =>
          Thread.currentThread.interrupt()
          Left(exchange.interruptedError(error))
      }
    outcome match {
      case Right(json) => json
      case Left(error) => throw error
    }
  }

  /** Asks the engine to give up. `await` then tells how it ended: the commit may have become durable before. */
  def cancel(): Unit = if (!isDone) cancelRequest(requestId)

  private[wire] override def receive(): Unit = if (claimed.compareAndSet(false, true)) {
    pool.reads(this)
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
