package org.apache.spark.sql.lamina.wire

import java.util.concurrent.CompletableFuture

import scala.collection.mutable

import org.json4s.JValue
import org.json4s.JsonAST.JInt

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * Where the engine says what became of accepted commits: one connection, and one thread that reads it, for all of them.
 *
 * When the stream ends, all commits that are waited for have failed: their outcomes would be told nowhere.
 *
 * @param lostReason why the engine ended; none while it lives
 */
private[wire] final class OutcomeStream(name: String, connection: Connection, lostReason: () => Option[String]) {
  import OutcomeStream.Outcome

  private val expected = mutable.HashMap.empty[Long, CompletableFuture[Outcome]]

  /** Why the stream has ended, for a request. */
  private var over = Option.empty[Long => LaminaError]

  DaemonThreads.start(name)(receive())

  /** Whether commits may still be expected. */
  def isOpen: Boolean = synchronized(over.isEmpty)

  /** The outcome of a commit that is about to be sent; it has failed at once where the stream has ended. */
  def expect(request: Long): CompletableFuture[Outcome] = synchronized {
    val outcome = new CompletableFuture[Outcome]
    over match {
      case Some(error) => outcome.complete(Left(error(request)))
      case None => expected(request) = outcome
    }
    outcome
  }

  /** Says that the outcome of a commit is known, or matters to nobody. */
  def forget(request: Long): Unit = synchronized { expected.remove(request); () }

  /** Commits whose outcomes are waited for. */
  def size: Int = synchronized(expected.size)

  def close(): Unit = connection.close()

  private def receive(): Unit = {
    val reason =
      try {
        while (true) take(connection.readHeader())
        null
      } catch { case error: Throwable => error } // whatever it is, nobody reads on
    connection.close()
    val (kind, why) = lostReason() match {
      case Some(lost) => (LaminaError.EngineLost, lost)
      case None => (LaminaError.EngineProtocol, s"the stream of outcomes broke off ($reason)")
    }
    def error(request: Long) = new LaminaError(kind, s"commit request $request has no outcome: $why", reason)
    val failed = synchronized {
      over = Some(error)
      val failed = expected.toSeq
      expected.clear()
      failed
    }
    failed.foreach { case (request, outcome) => outcome.complete(Left(error(request))) }
  }

  private def take(json: JValue): Unit = json \ "id" match {
    case JInt(id) =>
      // one that passed its deadline here has been forgotten
      synchronized(expected.remove(id.toLong)).foreach { outcome =>
        outcome.complete(
          try Right(Protocol.answer(json))
          catch { case error: LaminaError => Left(error) }
        )
      }
    case _ => throw new LaminaError(LaminaError.EngineProtocol, s"an outcome without id: ${Protocol.text(json)}")
  }
}

private[wire] object OutcomeStream {

  /** The engine's answer when a commit is durable, or why it is not. */
  type Outcome = Either[Throwable, JValue]
}
