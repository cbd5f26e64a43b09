package org.apache.spark.sql.lamina.wire

import java.io.IOException
import java.nio.file.Path
import java.util.concurrent.{Executors, RejectedExecutionException}
import java.util.concurrent.atomic.AtomicLong

import org.json4s.{JArray, JObject, JValue}
import org.json4s.JsonAST.JString

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
    cancelRequest: Long => Unit
) {
  import DataClient._

  private val timer = new DeadlineTimer(s"$name-deadlines")
  private val pool = new ConnectionPool(settings.connections, connect)
  private val answers = Executors.newCachedThreadPool(DaemonThreads(s"$name-answers"))
  private val writers = new Reuse[ChangeWriter](MaxIdleBytes, () => new ChangeWriter)
  private val readers = new Reuse[EntryReader](MaxIdleBytes, () => new EntryReader)

  /**
   * Sends a commit. Each section is collected once. `header` is asked for once too, when the first section was collected,
   * so that the header may say what that amounted to; of one that does not fit into a batch, when the first batch is full.
   */
  def commit(header: () => JObject, sections: Seq[(String, EntrySink => Unit)]): PendingCommit =
    writers.use { writer =>
      val names = "sections" -> JArray(sections.iterator.map { case (section, _) => JString(section) }.toList)
      var exchange: Exchange = null
      def begin(): Connection = {
        val json = Protocol.merged(header(), names)
        exchange = open("commit")
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
      } catch { case error: Throwable => throw (if (exchange == null) error else exchange.failedSending(error)) }
      try new PendingCommit(exchange, answers, cancelRequest)
      catch { case error: Throwable => throw exchange.failed(error) } // no thread to read the answer
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
    new Exchange(id, op, connection, deadline, timer, pool, lostReason, brokenReason, cancelLater, paced)
  }

  /** On another thread: the caller may have been killed, and the engine may be slow to answer. */
  private def cancelLater(request: Long): Unit =
    try answers.execute(() => DaemonThreads.guarded("The end of a request")(cancelRequest(request)))
    catch { case _: RejectedExecutionException => () } // the engine has ended

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

  /** Connections open now, and those of them in use. */
  def connections: (Int, Int) = pool.counts

  /** Fails all requests, those that are under way and later ones. */
  def close(): Unit = {
    pool.close()
    answers.shutdown()
    timer.close()
    writers.close()
    readers.close()
  }
}

private[wire] object DataClient {

  /** What idle writers, and idle readers, may hold of buffers. */
  private val MaxIdleBytes = 64L << 20

  /** Stands for a request while a connection is opened; ids of requests are positive. */
  private val Greeting = -1L

  /** Unique in this JVM, across engines. */
  private val requestIds = new AtomicLong
}
