package org.apache.spark.sql.lamina.wire

import java.io.IOException
import java.nio.file.Path
import java.util.concurrent.{CompletableFuture, Executors, RejectedExecutionException}
import java.util.concurrent.atomic.AtomicLong
import java.util.concurrent.locks.ReentrantLock

import org.json4s.{JArray, JObject, JValue}
import org.json4s.JsonAST.{JNothing, JString}

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.EntrySink

/** The data requests of one engine: commits, loads, feeds, over a bounded pool of connections and reused buffers. */
private[wire] final class DataClient(
    settings: ProcessSettings,
    name: String,
    socket: Path,
    token: String,
    lostReason: () => Option[String],
    brokenReason: Long => LaminaError,
    cancelRequest: Long => Unit,
    hurryRequest: Long => Unit
) {
  import DataClient._

  private val timer = new DeadlineTimer(s"$name-deadlines")
  private val pool = new ConnectionPool(settings.connections, connect)
  private val asks = Executors.newCachedThreadPool(DaemonThreads(s"$name-asks"))
  private val opening = new ReentrantLock
  @volatile private var outcomes: OutcomeStream = _
  private val writers = new Reuse[ChangeWriter](MaxIdleBytes, () => new ChangeWriter)
  private val readers = new Reuse[EntryReader](MaxIdleBytes, () => new EntryReader)

  /**
   * Sends a commit. Each section is collected once. `header` is asked for once too, when the first section was collected,
   * so that the header may say what that amounted to; of one that does not fit into a batch, when the first batch is full.
   * Returns when the engine has accepted it; what was begun instead, where the commit was to begin its attempt and more
   * is wanted of it.
   */
  def commit(
      header: () => JObject,
      sections: Seq[(String, EntrySink => Unit)],
      nobodyWaits: () => Boolean
  ): Either[JObject, PendingCommit] = {
    val stream = openOutcomes()
    val (exchange, expected) = sent(header, sections, stream)
    val sentNanos = System.nanoTime()
    val taken =
      try DataClient.taken(exchange.readAnswer(nobodyWaits))
      catch {
        case error: Throwable =>
          stream.forget(exchange.id)
          throw exchange.failed(error)
      }
    exchange.done()
    taken.map { case (attempt, durable) =>
      val outcome = durable.fold(expected) { answer =>
        CompletableFuture.completedFuture[OutcomeStream.Outcome](Right(answer))
      }
      if (durable.isEmpty) {
        val disarm = timer.at(exchange.patience) {
          stream.forget(exchange.id)
          if (expected.complete(Left(exchange.deadlineError))) askLater(cancelRequest)(exchange.id)
        }
        expected.whenComplete((_, _) => disarm())
      } else stream.forget(exchange.id)
      new PendingCommit(exchange.id, attempt, sentNanos, outcome, cancelRequest, askLater(hurryRequest))
    }.left.map { begun =>
      stream.forget(exchange.id)
      begun
    }
  }

  /** Sends a commit whose outcome `stream` is to expect. */
  private def sent(
      header: () => JObject,
      sections: Seq[(String, EntrySink => Unit)],
      stream: OutcomeStream
  ): (Exchange, CompletableFuture[OutcomeStream.Outcome]) =
    writers.use { writer =>
      val names = "sections" -> JArray(sections.iterator.map { case (section, _) => JString(section) }.toList)
      var exchange: Exchange = null
      var outcome: CompletableFuture[OutcomeStream.Outcome] = null
      def begin(): Connection = {
        val json = Protocol.merged(header(), names)
        exchange = open("commit")
        outcome = stream.expect(exchange.id)
        exchange.addHeader(json)
        exchange.connection
      }
      try {
        sections.zipWithIndex.foreach { case ((_, fill), index) =>
          if (index == 0) writer.hold(() => begin()) else writer.stream(exchange.connection)
          fill(writer)
          writer.finish(if (exchange == null) begin() else exchange.connection)
        }
        exchange.connection.flush()
      } catch {
        case error: Throwable =>
          if (exchange == null) throw error
          stream.forget(exchange.id)
          throw exchange.failedSending(error)
      }
      (exchange, outcome)
    }

  /** The stream of outcomes, opened before the first commit; its connection is none of the pool's from then on. */
  private def openOutcomes(): OutcomeStream = {
    // a task that is killed does not wait for the connection that another one waits for
    opening.lockInterruptibly()
    try {
      if (outcomes == null || !outcomes.isOpen) outcomes = openedOutcomes()
      outcomes
    } finally opening.unlock()
  }

  private def openedOutcomes(): OutcomeStream = {
    val exchange = open("outcomes")
    try {
      exchange.addHeader(JObject())
      exchange.connection.flush()
      exchange.readAnswer()
    } catch { case error: Throwable => throw exchange.failed(error) }
    new OutcomeStream(s"$name-outcomes", exchange.detached(), lostReason)
  }

  def load(header: JObject)(onHeader: JValue => Unit)(sink: EntrySink): Unit = {
    val op = header \ "op" match {
      case JString(given) => given
      case _ => "load"
    }
    stream(op, header)(onHeader)((reader, source) => { reader.read(source, sink); () })
  }

  def feed(header: JObject)(onHeader: JValue => Unit)(sink: FeedSink): Unit =
    stream("feed", header, paced = true)(onHeader)((reader, source) => { reader.readFeed(source, sink); () })

  def ping(): Unit = stream("ping", JObject())(_ => ())((_, _) => ())

  private def stream(op: String, header: JObject, paced: Boolean = false)(onHeader: JValue => Unit)(
      read: (EntryReader, ByteSource) => Unit
  ): Unit =
    readers.use { reader =>
      val exchange = open(op, paced)
      try {
        exchange.addHeader(header)
        exchange.connection.flush()
        onHeader(exchange.readAnswer())
        read(reader, exchange.stream)
      } catch { case error: Throwable => throw exchange.failed(error) }
      exchange.done()
    }

  private def open(op: String, paced: Boolean = false): Exchange = {
    val deadline = Deadline.in(settings.requestTimeoutMs)
    val connection =
      try pool.borrow(deadline)
      catch {
        case error: IOException if Connection.isInterruption(error) => throw interrupted(op, error)
        case error: InterruptedException =>
          Thread.currentThread.interrupt()
          throw interrupted(op, error)
        case error: IOException =>
          throw lostReason() match {
            case Some(reason) => new LaminaError(LaminaError.EngineLost, reason, error)
            case None => new LaminaError(LaminaError.EngineProtocol, s"no data connection to the engine: $error", error)
          }
        case lost: LaminaError if lost.kind == LaminaError.EngineLost =>
          throw lostReason().fold(lost) { reason =>
            new LaminaError(LaminaError.EngineLost, s"a $op request was not sent: $reason", lost)
          }
      }
    val id = requestIds.incrementAndGet()
    new Exchange(id, op, connection, deadline, timer, pool, lostReason, brokenReason, askLater(cancelRequest), paced)
  }

  /** On another thread: the caller may have been killed, and the engine may be slow to answer. */
  private def askLater(ask: Long => Unit)(request: Long): Unit =
    try asks.execute(() => DaemonThreads.guarded("What the engine was to be told of a request")(ask(request)))
    catch {
      case _: RejectedExecutionException => () // the engine has ended
      case _: OutOfMemoryError => () // no more threads: the request ends by itself
    }

  private def interrupted(op: String, cause: Throwable): LaminaError =
    new LaminaError(LaminaError.EngineCancelled, s"a $op request was given up: its thread was interrupted", cause)

  /** A new connection. Where the engine serves as many as it may, its answer takes until another one is closed. */
  private def connect(deadline: Deadline): Connection = {
    val connection = Connection.open(socket)
    connection.begin(Greeting)
    val disarm = timer.at(deadline)(connection.expire(Greeting))
    try {
      connection.greet(token)
      connection
    } catch {
      case error: Throwable =>
        connection.close()
        throw (if (connection.hasExpired) Deadline.passed(deadline, "a new connection") else error)
    } finally {
      disarm()
      connection.end()
    }
  }

  /** Connections open now, and those of them in use; without the stream of outcomes. */
  def connections: (Int, Int) = pool.counts

  /** Commits that were accepted, or are being sent, and whose outcome is not known. */
  def pendingCommits: Int = Option(outcomes).fold(0)(_.size)

  /** Fails all requests, those that are under way and later ones. */
  def close(): Unit = {
    // whoever opens the stream fails from now on
    pool.close()
    opening.lock()
    try Option(outcomes).foreach(_.close())
    finally opening.unlock()
    asks.shutdown()
    timer.close()
    writers.close()
    readers.close()
  }
}

private[wire] object DataClient {

  /**
   * What the engine answered to a commit: the attempt that it was accepted as, with the whole answer where it is durable;
   * or what was begun instead.
   */
  private def taken(answer: JValue): Either[JObject, (String, Option[JValue])] =
    (answer \ "begun", answer \ "accepted") match {
      case (begun: JObject, _) => Left(begun)
      case (_, JString(attempt)) => Right((attempt, Some(answer).filter(_ \ "durable" != JNothing)))
      case _ => throw new LaminaError(LaminaError.EngineProtocol, "a commit was answered without its attempt's id")
    }

  /** What idle writers, and idle readers, may hold of buffers. */
  private val MaxIdleBytes = 64L << 20

  /** Stands for a request while a connection is opened; ids of requests are positive. */
  private val Greeting = -1L

  /** Unique in this JVM, across engines. */
  private val requestIds = new AtomicLong
}
