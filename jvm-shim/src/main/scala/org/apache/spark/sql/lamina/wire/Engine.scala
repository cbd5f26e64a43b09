package org.apache.spark.sql.lamina.wire

import org.json4s.{JObject, JValue}
import org.json4s.JsonAST.{JInt, JString}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.EntrySink
import org.apache.spark.util.ShutdownHookManager

/**
 * One engine process as the shim sees it: control calls, and data requests.
 *
 * An instance belongs to one process and ends with it: then every call fails with `engine.lost`, and `Engine.get`
 * starts the next one, whose `generation` is greater. Handles of stores belong to a generation. All methods may be
 * called from any thread.
 */
final class Engine private (
    settings: ProcessSettings,
    val generation: Long,
    process: EngineProcess,
    greeting: Greeting
) extends Logging {
  private val control = new Control(greeting.py4jPort, process.token, settings.requestTimeoutMs)
  private val data = new DataClient(
    settings,
    s"lamina-engine-$generation",
    greeting.socket,
    process.token,
    () => process.lostReason(),
    brokenReason,
    tell("cancel"),
    tell("hurry")
  )

  process.onExit { () =>
    data.close()
    control.close()
    if (!stopping) logError(s"the engine process ${process.pid} has ended; the next store that opens starts another")
  }
  @volatile private var stopping = false

  def isAlive: Boolean = process.isAlive

  /** Process id of the engine. */
  def pid: Long = process.pid

  /** Bytes that the buffers of all engines of this JVM hold now. */
  def bufferBytes: Long = DirectBuffer.totalBytes

  /** Data connections open now, and those of them in use; without the stream of outcomes. */
  def connections: (Int, Int) = data.connections

  /** Commits whose outcome is not known. */
  def pendingCommits: Int = data.pendingCommits

  /**
   * Calls a control method.
   *
   * @param args texts, JSON values, or integers
   * @return the answer
   * @throws LaminaError what the engine answered, or `engine.lost`, `engine.deadline`
   */
  def call(method: String, args: AnyRef*): JValue =
    try control.call(method, args)
    catch {
      case error: LaminaError if error.kind == LaminaError.EngineProtocol && error.getCause != null =>
        throw process.lostReason() match {
          // not the error itself: a cause of another kind would say that the protocol was broken
          case Some(reason) =>
            new LaminaError(LaminaError.EngineLost, s"$method was not answered: $reason", error.getCause)
          case None => error
        }
    }

  /**
   * Sends a commit; returns when the engine has accepted it, which is late where it is published while it arrives.
   *
   * @param header `handle`, `attempt` or `begin`, and so on; id, op, sections and deadline are filled in
   * @param sections by name, what puts its entries into a sink; may be called twice and must give the same again
   */
  def commit(header: JObject, sections: Seq[(String, EntrySink => Unit)]): PendingCommit =
    commit(() => header, sections).getOrElse(
      throw new LaminaError(LaminaError.EngineProtocol, "a commit of an attempt that was begun is to hold more")
    )

  /**
   * As above, with a header that is made after the first section was run. Where it has `begin` in place of an attempt,
   * and the engine wants more sections, nothing is taken, and the attempt that was begun is given.
   *
   * @param nobodyWaits looked at again and again: whether the commit is given up before it is accepted
   */
  def commit(
      header: () => JObject,
      sections: Seq[(String, EntrySink => Unit)],
      nobodyWaits: () => Boolean = () => false
  ): Either[JObject, PendingCommit] = data.commit(header, sections, nobodyWaits)

  /**
   * Reads a version.
   *
   * @param header with `op` "load" or "replay"
   * @param onHeader gets the answer before the first entry
   * @param sink gets each entry as addresses into a buffer, valid during the call only
   */
  def load(header: JObject)(onHeader: JValue => Unit)(sink: EntrySink): Unit = data.load(header)(onHeader)(sink)

  /**
   * Reads changes, version by version.
   *
   * @param row gets version, family, op, key address and length, value address and length
   */
  def feed(header: JObject)(onHeader: JValue => Unit)(
      row: (Long, Int, Byte, Long, Int, Long, Int) => Unit
  ): Unit =
    data.feed(header)(onHeader)((version, family, op, key, keyLength, value, valueLength) =>
      row(version, family, op, key, keyLength, value, valueLength)
    )

  /** An empty data request: fails if the engine does not answer. */
  def ping(): Unit = data.ping()

  /** Calls a method about a data request, by its id. Does nothing where the request, or the engine, has ended. */
  private def tell(method: String)(requestId: Long): Unit =
    try { call(method, Long.box(requestId)); () }
    catch { case error: LaminaError => logDebug(s"the engine was not told to $method request $requestId", error) }

  /** Why the engine broke off its answer to a request: it tells when it is asked to cancel that request. */
  private def brokenReason(requestId: Long): LaminaError =
    call("cancel", Long.box(requestId)) \ "error" match {
      case error: JObject => Protocol.error(error)
      case _ =>
        new LaminaError(
          LaminaError.EngineProtocol,
          s"the engine broke off its answer to request $requestId; the last lines of its log:\n${process.logTail}"
        )
    }

  private def hello(): Unit = {
    val answer = call(
      "hello",
      JObject("shim_version" -> JString(Protocol.shimVersion), "protocol" -> JInt(Protocol.Version))
    )
    answer \ "maintenance_pid" match {
      case JInt(pid) => process.ownsMaintenance(pid.toLong)
      case _ => ()
    }
  }

  private def stop(graceMs: Long): Unit = {
    stopping = true
    process.stop(graceMs)
  }
}

object Engine {

  /** After Spark's context has stopped, before temporary directories are deleted. */
  private val ShutdownPriority = 30
  private val GraceMs = 5000L

  private var fixed: Option[ProcessSettings] = None
  @volatile private var current: Option[Engine] = None
  private var generations = 0L
  private var hooked = false

  /** Whether a store has opened, and whether the settings of one that wanted to were refused. */
  @volatile private var inUse = false
  @volatile private var refused = false

  /** Whether the engine that runs was started ahead of all stores, and none has asked for one since. */
  @volatile private var ahead = false

  /**
   * The engine of this JVM; starts its process if there is none, or if it has ended.
   *
   * @throws LaminaError `engine.start`, `engine.dependency`, `version.engine`; `settings.conflict` if a process setting
   *   is not what is fixed for this JVM
   */
  def get(settings: ProcessSettings): Engine = current match {
    case Some(engine) if !ahead && engine.isAlive && fixed.forall(fits(_, settings)) => engine
    case _ => startIfNeeded(settings)
  }

  /**
   * Starts the process where none has been asked for. The first store's settings count all the same: where they are
   * others, another engine takes the place of this one.
   *
   * @throws LaminaError as `get`
   */
  def startAhead(settings: ProcessSettings): Unit = synchronized {
    if (fixed.isEmpty && !refused && !Thread.interrupted()) {
      // before the engine is there: who takes it says that it is not
      ahead = true
      try startFixed(settings)
      catch {
        case error: Throwable =>
          ahead = false
          refused = false
          throw error
      }
      ()
    }
  }

  /** Ends an engine that was started ahead, and that no store has asked for. */
  def endAhead(): Unit = synchronized(if (ahead) shutdown())

  private def fits(first: ProcessSettings, later: ProcessSettings): Boolean =
    if (mayChange || ahead) first == later else conflict(first, later).isEmpty

  /** A store has opened: from now on the process settings hold for all queries. */
  def opened(): Unit = inUse = true

  /** The settings of a store were refused. */
  def refuse(): Unit = refused = true

  /**
   * Whether the next query's process settings count, those that it leaves out too: no store has opened, and the engine
   * could not start with the settings of one that tried, or refused them.
   */
  def mayChange: Boolean = refused && !inUse

  private def startIfNeeded(settings: ProcessSettings): Engine = synchronized {
    fixed.filterNot(fits(_, settings)).foreach { first =>
      if (mayChange || ahead) shutdown() else conflict(first, settings).foreach(error => throw error)
    }
    ahead = false
    current.filter(_.isAlive).getOrElse(startFixed(settings))
  }

  private def startFixed(settings: ProcessSettings): Engine = {
    hookShutdown()
    generations += 1
    // another start is like the first one, also for a query that leaves settings out
    val wanted = fixed.getOrElse(settings)
    val engine =
      try start(wanted, generations)
      catch {
        case error: InterruptedException =>
          Thread.currentThread.interrupt()
          throw new LaminaError(LaminaError.EngineCancelled, "the start of the engine was interrupted", error)
        case error: LaminaError =>
          refuse()
          throw error
      }
    fixed = Some(wanted)
    refused = false
    current = Some(engine)
    engine
  }

  private def start(settings: ProcessSettings, generation: Long): Engine = {
    val (process, greeting) = EngineProcess.start(settings, generation)
    try {
      val engine = new Engine(settings, generation, process, greeting)
      engine.hello()
      engine
    } catch {
      case error: Throwable =>
        process.stop(GraceMs)
        throw error
    }
  }

  /** What `later` sets otherwise than `first`; what it leaves out follows. */
  private def conflict(first: ProcessSettings, later: ProcessSettings): Option[LaminaError] =
    if (first.raw == later.raw) None
    else later.raw.toSeq.sorted.collectFirst {
      case (key, value) if !first.raw.get(key).contains(value) =>
        ProcessSettings.conflict(key, first.raw.get(key), "the engine of this JVM was first started", value)
    }

  private def hookShutdown(): Unit = if (!hooked) {
    try ShutdownHookManager.addShutdownHook(ShutdownPriority)(() => shutdown())
    catch {
      case error: IllegalStateException =>
        throw new LaminaError(LaminaError.EngineStart, "no engine is started while the JVM shuts down", error)
    }
    hooked = true
  }

  /** Ends the engine process, if there is one, and forgets the settings that it fixed. */
  def shutdown(): Unit = synchronized {
    current.foreach(_.stop(GraceMs))
    current = None
    fixed = None
    inUse = false
    refused = false
    ahead = false
  }
}
