package org.apache.spark.sql.lamina.wire

import java.io.IOException

import scala.util.control.NonFatal

import org.json4s.{JObject, JValue}
import org.json4s.JsonAST.{JInt, JString}

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * One request on its connection, from the first byte to the last of its answer, and what became of it.
 *
 * Ends by exactly one of `done`, `detached` and `failed`, which give the connection back. The engine watches the deadline as well
 * and answers when it passes; this side waits a little longer, then closes the connection.
 *
 * @param giveUp tells the engine that nobody waits for a request any more; waits for nothing
 * @param paced whether the caller decides how long the answer takes, by how fast it reads: then the deadline is for each
 *   piece that it waits for, and this side's alone
 */
private[wire] final class Exchange(
    val id: Long,
    op: String,
    val connection: Connection,
    deadline: Deadline,
    timer: DeadlineTimer,
    pool: ConnectionPool,
    lostReason: () => Option[String],
    brokenReason: Long => LaminaError,
    giveUp: Long => Unit,
    paced: Boolean
) {
  private var isRefused = false
  @volatile private var isGivenUp = false

  connection.begin(id)

  /** When this side gives up: the engine's own answer comes before. */
  val patience: Deadline = Deadline.in(deadline.remainingMs + Exchange.GraceMs)
  private val disarm = if (paced) () => () else timer.at(patience)(connection.expire(id))

  /** Takes the request's header for sending; `flush` of the connection sends it. */
  def addHeader(header: JObject): Unit = {
    val left = if (paced) 0L else math.max(deadline.remainingMs, 1L) // 0 means none
    connection.add(Protocol.frame(
      Protocol.merged(header, "id" -> JInt(id), "op" -> JString(op), "deadline_ms" -> JInt(left))
    ))
  }

  /** Where the answer's stream comes from. */
  def stream: ByteSource = to => piece(connection.readFully(to))

  /** Reads a part of the answer. */
  private def piece[A](read: => A): A =
    if (!paced) read
    else {
      val stop = timer.at(Deadline.in(deadline.timeoutMs))(connection.expire(id))
      try read
      finally stop()
    }

  /** As below, for a thread that stops waiting once `nobodyWaits`, which is looked at again and again. */
  def readAnswer(nobodyWaits: () => Boolean): JValue =
    timer.watching(nobodyWaits) { isGivenUp = true; connection.expire(id) } { readAnswer() }

  /** The header of the answer, if it says ok. */
  def readAnswer(): JValue = {
    val json = piece(connection.readHeader())
    json \ "id" match {
      case JInt(answered) if answered == id =>
        try Protocol.answer(json)
        catch {
          case refusal: LaminaError =>
            isRefused = true
            throw refusal
        }
      case other =>
        Protocol.answer(json)
        throw new LaminaError(LaminaError.EngineProtocol, s"request $id got the answer of request $other")
    }
  }

  /** The answer is complete: another request may follow on the connection. */
  def done(): Unit = {
    disarm()
    connection.end()
    pool.give(connection)
  }

  /** As `done`, for a connection that carries no further requests and is the caller's from now on. */
  def detached(): Connection = {
    disarm()
    connection.end()
    pool.release(connection)
    connection
  }

  /**
   * Ends the exchange after `error` and says what to throw: for a broken connection, why it broke. An engine that has not
   * answered may be at work, or wait for its storage: it is told to give up, since it would keep the request's place.
   */
  def failed(error: Throwable): Throwable = {
    val result =
      try explained(error)
      catch {
        case ours: LaminaError => ours
        case NonFatal(_) => error
      }
    disarm()
    connection.end()
    pool.discard(connection)
    result
  }

  /** As `failed`, while sending: the engine may have answered before it had read everything. */
  def failedSending(error: Throwable): Throwable = {
    val answered = error match {
      case _: IOException if connection.isOpen =>
        try { readAnswer(); None }
        catch {
          case answer: LaminaError => Some(answer)
          case NonFatal(_) => None
        }
      case _ => None
    }
    failed(answered.getOrElse(error))
  }

  private def explained(error: Throwable): Throwable = error match {
    case interruption: IOException if Connection.isInterruption(interruption) =>
      giveUp(id)
      interruptedError(interruption)
    case broken: IOException if connection.hasExpired =>
      giveUp(id)
      if (isGivenUp) interruptedError(broken) else deadlineError
    case broken: IOException =>
      lostReason() match {
        case Some(reason) =>
          new LaminaError(LaminaError.EngineLost, s"$op request $id was not answered: $reason", broken)
        case None =>
          val reason = brokenReason(id)
          reason.addSuppressed(broken)
          reason
      }
    case other =>
      if (!isRefused) giveUp(id)
      other
  }

  def deadlineError: LaminaError = Deadline.passed(deadline, s"$op request $id")

  def interruptedError(cause: Throwable): LaminaError =
    new LaminaError(
      LaminaError.EngineCancelled,
      s"$op request $id was given up, because its thread was interrupted, or its task killed",
      cause
    )
}

private[wire] object Exchange {

  /** How much later than the engine this side gives up, so that the engine's own answer arrives first. */
  private val GraceMs = 1000L
}
