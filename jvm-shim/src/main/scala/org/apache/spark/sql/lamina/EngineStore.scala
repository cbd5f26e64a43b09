package org.apache.spark.sql.lamina

import java.nio.charset.StandardCharsets
import java.util.UUID
import java.util.concurrent.{
  CompletableFuture,
  ConcurrentHashMap,
  ExecutionException,
  SynchronousQueue,
  ThreadPoolExecutor,
  TimeUnit
}
import java.util.concurrent.atomic.AtomicReference
import java.util.concurrent.locks.ReentrantLock

import scala.util.Try

import org.json4s.{JArray, JBool, JInt, JNothing, JNull, JObject, JString, JValue}
import org.json4s.JsonDSL._
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.hadoop.conf.Configuration

import org.apache.spark.{SPARK_VERSION, SparkEnv, TaskContext}
import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.{StateStoreConf, StateStoreId}
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.{Below, EntrySink}
import org.apache.spark.sql.lamina.wire.{CommitAnswer, DaemonThreads, Engine, ProcessSettings}

/**
 * A store that is open in an engine process.
 *
 * @param checkpoint uuid of the checkpoint
 * @param settings as the engine resolved them, by full key
 */
final class EngineHandle(
    val engine: Engine,
    val number: Long,
    val readOnly: Boolean,
    val checkpoint: String,
    val settings: Map[String, String],
    val remote: Boolean = false
) {

  def isCurrent: Boolean = engine.isAlive

  def call(method: String, argument: JObject): JValue =
    engine.call(method, Long.box(number), compact(render(argument)))
}

/**
 * An attempt that the engine allotted.
 *
 * @param handle the process that knows it: an attempt does not outlive its engine
 * @param snapshot whether the commit must hold the whole version
 * @param rewrite the part of the version, and of how many, that the commit must hold
 * @param isWanted a commit that changes nothing must be sent, too: the base's file is not whole any more, or the store rests and
 *   names what was merged of it, or keeps log objects that others have left
 */
final case class Begun(
    handle: EngineHandle,
    attempt: String,
    baseAttempt: Option[String],
    snapshot: Boolean,
    rewrite: Option[(Int, Int)],
    isWanted: Boolean
)

/**
 * One store's side of the engine: opens it there, again when the process is a new one, and speaks the wire protocol for
 * it.
 *
 * Thread-safe. Nothing here keeps rows.
 */
class EngineStore(
    id: StateStoreId,
    storeConf: StateStoreConf,
    hadoopConf: Configuration,
    process: ProcessSettings,
    settings: Map[String, String]
) extends StateSource
    with Logging {

  /** Held while the store is opened in the engine, which may take as long as its storage. */
  private val opening = new ReentrantLock
  @volatile private var current: EngineHandle = _

  private lazy val storageKeys =
    StoreSettings.storageKeys(hadoopConf, id.checkpointRootLocation, StoreSettings.elsewhere(settings))

  /**
   * The run of the query that the store is opened for. Spark's offline repartition gives each of its tasks a run of its own,
   * and the newest of these would refuse what the others write: those of a stage are one.
   */
  @volatile private var run = Option(hadoopConf.get(Compat.runIdKey))

  private[lamina] def runOf: String = run.getOrElse("")

  /** The task that runs writes the store anew, and is of no query's run. */
  def writesAnew(): Unit =
    for (task <- Option(TaskContext.get())) {
      // an id alone may be the user's, and stages are counted anew in each application
      val application =
        Seq("spark.app.id", "spark.app.startTime").map(key => Option(SparkEnv.get).map(_.conf.get(key, "")))
      val stage = s"$application ${task.stageId()} ${id.checkpointRootLocation}"
      run = Some(UUID.nameUUIDFromBytes(stage.getBytes(StandardCharsets.UTF_8)).toString)
    }

  /** The store's handle in the running engine. A writer's handle serves readers too. */
  def handle(readOnly: Boolean): EngineHandle = {
    val known = current
    if (fits(known, Engine.get(process), readOnly)) known
    else EngineStore.interruptibly(openedHandle(readOnly), (_: EngineHandle) => closeIfLeft())
  }

  /** Whether the store is open for writing. */
  private[lamina] def isWriter: Boolean = {
    val known = current
    known != null && !known.readOnly
  }

  private def fits(known: EngineHandle, engine: Engine, readOnly: Boolean): Boolean =
    known != null && known.engine.generation == engine.generation && (readOnly || !known.readOnly)

  private def openedHandle(readOnly: Boolean): EngineHandle = {
    opening.lock()
    try {
      val (engine, stale) = (Engine.get(process), current)
      if (fits(stale, engine, readOnly)) stale
      else {
        val opened = openStore(engine, readOnly)
        current = opened
        if (stale != null && stale.engine.generation == engine.generation) closeQuietly(stale)
        opened
      }
    } finally opening.unlock()
  }

  private[lamina] def openStore(engine: Engine, readOnly: Boolean): EngineHandle = {
    val argument =
      ("store" -> ("operator" -> id.operatorId) ~ ("partition" -> id.partitionId) ~ ("name" -> id.storeName)) ~
        ("url" -> id.checkpointRootLocation) ~
        ("settings" -> settings.toSeq.sorted.map { case (key, value) => key -> (JString(value): JValue) }.foldLeft(
          JObject()
        )(_ ~ _)) ~
        ("hadoop" -> storageKeys.toSeq.sorted
          .map { case (key, value) => key -> (JString(value): JValue) }.foldLeft(JObject())(_ ~ _)) ~
        ("run_id" -> runOf) ~
        ("read_only" -> readOnly) ~
        ("format_version" -> (if (storeConf.enableStateStoreCheckpointIds) 2 else 1)) ~
        ("minVersionsToRetain" -> storeConf.minVersionsToRetain) ~
        ("spark" -> SPARK_VERSION)
    val result =
      try engine.call("openStore", compact(render(argument)))
      catch {
        // another Python may have what this one lacks
        case error: LaminaError if error.kind.startsWith("settings.") || error.kind == LaminaError.EngineDependency =>
          Engine.refuse()
          throw error
      }
    Engine.opened()
    val number = result \ "handle" match {
      case JInt(value) => value.toLong
      case _ => throw new LaminaError(LaminaError.EngineProtocol, "openStore answered without a handle")
    }
    EngineStore.warnings(result).foreach(text => logWarning(text))
    val resolved = result \ "settings" match {
      case JObject(fields) => fields.map { case (key, value) => key -> EngineStore.text(value) }.toMap
      case _ => Map.empty[String, String]
    }
    val checkpoint = EngineStore.string(result \ "checkpoint").getOrElse("")
    new EngineHandle(engine, number, readOnly, checkpoint, resolved, result \ "remote" == JBool(true))
  }

  private def whole(name: String, otherwise: Long): Long =
    Try(settings(StoreSettings.Prefix + name).trim.toLong).getOrElse(otherwise)

  /** How tables of the store are layered, where they are. */
  val layers: Option[Layers] =
    if (StoreSettings.isLayered(settings))
      Some(
        Layers(
          whole("rocksdb.materializeEvery", 128L),
          holdsTimers = settings.get(StoreSettings.Prefix + "rocksdb.timers").exists(_.trim == "heap"),
          metrics = settings.get(StoreSettings.Prefix + "rocksdb.metrics").toSeq.flatMap(_.split(',')).map(_.trim).toSet
        )
      )
    else None

  private val offered = new AtomicReference[InPlace]
  @volatile private var isClosed = false

  /** Takes newer tables, which the engine says of. */
  private[lamina] def offer(place: InPlace): Unit = {
    Option(offered.getAndSet(place)).filter(_ != place).foreach(_.remove())
    // what comes late is nobody's
    if (isClosed) takeOffered().foreach(_.remove())
  }

  /** Opens tables that are read in place. */
  private[lamina] def openBelow(place: InPlace, reads: ReadCounts): Below = TablesBelow.open(place, reads)

  /** Newer tables, which are the caller's from now on. */
  private[lamina] def takeOffered(): Option[InPlace] = Option(offered.getAndSet(null))

  /** Whether rows above the tables below have got their share of memory: the engine is to put them there. */
  @volatile private[lamina] var isDue = false

  /** Has all that a version holds above its tables put into them, and waits for that. Newer tables are offered then. */
  def materialize(version: Long, attempt: Option[String]): Unit = {
    val opened = handle(readOnly = false)
    EngineStore.interruptibly {
      val answer = opened.call("materialize", ("version" -> version) ~ ("attempt" -> attempt))
      InPlace.fromJson(answer \ "in_place").foreach(offer)
    }
  }

  /** How many increments the version of the last durable commit consists of, and their bytes. */
  @volatile private[lamina] var increments = (0L, 0L)

  /** Bytes that the last collection left, and those of them that the newest version needed. */
  @volatile private[lamina] var space = (0L, 0L)

  /** Whether the store was maintained since an attempt was last begun. */
  @volatile private var wasMaintained = false

  /**
   * Whether a commit on an attempt whose rows are here may begin by itself, without a call before it: the engine knows
   * attempts by their ids, and its answer seldom is that it wants more than what changed. Where a commit shares a log
   * object it has to know before that whether its base is there, which a remote storage is asked beside the batch: of
   * stores that changed something in the last one, since most attempts of others are for nothing.
   */
  def beginsWithCommit(attempt: Option[String], loadEmpty: Boolean, forceSnapshot: Boolean): Boolean =
    storeConf.enableStateStoreCheckpointIds && attempt.isDefined && !loadEmpty && !forceSnapshot && {
      val opened = handle(readOnly = false)
      !opened.settings.get(EngineStore.CompactionKey).contains("rolling") && (rests || !looksFar(opened))
    }

  /** Whether a commit waits for an answer of another machine before it has its place. */
  protected def looksFar(opened: EngineHandle): Boolean =
    opened.remote && opened.settings.get(EngineStore.ChangelogKey).contains("true")

  /** Whether the last batch changed nothing. */
  @volatile private[lamina] var rests = false

  /**
   * Whether a commit that changes nothing has to be told to the engine all the same. It confirms the version, so that
   * older ones leave retention, and finds that a file of it was lost, or that the store should leave the log.
   */
  def wantsToHear: Boolean = wasMaintained

  /** Confirms a base and allots an attempt of the version after it. */
  def begin(
      version: Long,
      attempt: Option[String],
      loadEmpty: Boolean,
      forceSnapshot: Boolean,
      have: Boolean
  ): Begun = {
    val opened = handle(readOnly = false)
    val argument = beginning(version, attempt, loadEmpty, forceSnapshot, have)
    // before the call: a maintenance that falls within it counts
    wasMaintained = false
    try begun(opened, EngineStore.interruptibly(opened.call("begin", argument)))
    catch {
      case error: Throwable =>
        wasMaintained = true
        throw error
    }
  }

  private def beginning(
      version: Long,
      attempt: Option[String],
      loadEmpty: Boolean,
      forceSnapshot: Boolean,
      have: Boolean
  ): JObject =
    ("version" -> version) ~ ("attempt" -> attempt) ~ ("task_attempt" -> EngineStore.taskAttempt) ~
      ("load_empty" -> loadEmpty) ~ ("force_snapshot" -> forceSnapshot) ~ ("have" -> have) ~ ("due" -> isDue)

  /** What a commit says that begins its attempt itself. */
  def beginning(version: Long, attempt: String): JObject =
    beginning(version, Some(attempt), loadEmpty = false, forceSnapshot = false, have = true)

  private def begun(opened: EngineHandle, result: JValue): Begun =
    Begun(
      opened,
      EngineStore.string(result \ "attempt").getOrElse(
        throw new LaminaError(LaminaError.EngineProtocol, "begin answered without an attempt")
      ),
      EngineStore.string(result \ "base_attempt"),
      result \ "snapshot" == JBool(true),
      for {
        part <- EngineStore.long(result \ "rewrite" \ "part")
        parts <- EngineStore.long(result \ "rewrite" \ "parts")
      } yield (part.toInt, parts.toInt),
      result \ "lost" == JBool(true) || result \ "apart" == JBool(true)
    )

  /** The attempt of a version that counts; confirms nothing. */
  def resolve(version: Long, attempt: Option[String], readOnly: Boolean): Option[String] = {
    val opened = handle(readOnly)
    val argument = ("version" -> version) ~ ("attempt" -> attempt)
    EngineStore.string(EngineStore.interruptibly(opened.call("resolve", argument)) \ "attempt")
  }

  override def load(version: Long, attempt: Option[String], have: Option[Position])(
      onHeader: LoadHeader => Unit
  )(sink: EntrySink): Unit = request(readOnly = true) { opened =>
    opened.engine.load(
      ("op" -> "load") ~ ("handle" -> opened.number) ~ ("version" -> version) ~ ("attempt" -> attempt) ~
        ("have" -> have.map(at => ("version" -> at.version) ~ ("attempt" -> at.content))) ~
        ("read_only" -> opened.readOnly) ~ ("in_place" -> layers.isDefined)
    )(header => onHeader(EngineStore.loadHeader(header)))(sink)
  }

  /** Sends a version rebuilt from the snapshot of an older one. */
  def replay(snapshot: Long, snapshotAttempt: Option[String], end: Long, endAttempt: Option[String])(
      onHeader: LoadHeader => Unit
  )(sink: EntrySink): Unit = request(readOnly = true) { opened =>
    opened.engine.load(
      ("op" -> "replay") ~ ("handle" -> opened.number) ~ ("version" -> end) ~ ("attempt" -> endAttempt) ~
        ("have" -> JNull) ~ ("read_only" -> true) ~
        ("snapshot_version" -> snapshot) ~ ("snapshot_attempt" -> snapshotAttempt)
    )(header => onHeader(EngineStore.loadHeader(header)))(sink)
  }

  /** Sends the changes of a range of versions, ascending. */
  def feed(start: Long, end: Long, endAttempt: Option[String], family: Option[Int])(
      onHeader: JValue => Unit
  )(row: (Long, Int, Byte, Long, Int, Long, Int) => Unit): Unit = request(readOnly = true) { opened =>
    opened.engine.feed(
      ("op" -> "feed") ~ ("handle" -> opened.number) ~ ("start_version" -> start) ~ ("end_version" -> end) ~
        ("end_attempt" -> endAttempt) ~ ("cf" -> family)
    )(onHeader)(row)
  }

  private def request[A](readOnly: Boolean)(send: EngineHandle => A): A = send(handle(readOnly))

  /**
   * Sends a commit; returns when it is accepted, or the attempt that it has begun where more is wanted than it holds. The
   * header is asked for when the first section was collected, or its first batch is full.
   */
  def commit(
      opened: EngineHandle,
      header: () => JObject,
      sections: Seq[(String, EntrySink => Unit)]
  ): Either[Begun, CommitAnswer] = {
    val task = TaskContext.get()
    opened.engine.commit(
      () => ("handle" -> JInt(opened.number)) ~ header(),
      sections,
      () => task != null && task.isInterrupted()
    ).left.map(begun(opened, _))
  }

  /** Queues compaction and collection, if the store is open in a living engine for writing. */
  def maintain(): Unit = Option(current).filter(opened => opened.isCurrent && !opened.readOnly).foreach { opened =>
    wasMaintained = true
    opened.call("maintain", JObject())
  }

  /** Bytes of the wire's buffers in this JVM. */
  def bufferBytes: Long = Option(current).fold(0L)(_.engine.bufferBytes)

  /**
   * Closes the store without waiting for what is under way. Who goes on all the same, as an open that outlives its provider and
   * becomes a writer, opens it again: nobody is given a handle that is about to be closed.
   */
  def closeLater(): Unit = {
    // before the handle is looked at: one that comes after that looks whether it comes too late
    isClosed = true
    val left = Option(current)
    current = null
    EngineStore.closing.execute { () =>
      left.foreach(closeQuietly)
      takeOffered().foreach(_.remove())
    }
  }

  /** Whether anything uses the store, also where it was closed. */
  @volatile private[lamina] var isNeeded: () => Boolean = () => true

  /** After the store was opened for somebody who did not wait for it: nobody else might close it. */
  private[lamina] def closeIfLeft(): Unit = if (isClosed && !isNeeded()) closeLater()

  /** A handle of an engine that is gone is gone too. */
  private def closeQuietly(opened: EngineHandle): Unit =
    try if (opened.isCurrent) opened.engine.call("closeStore", Long.box(opened.number))
    catch { case _: LaminaError => () }
}

object EngineStore {

  /** A thread for each call that a task waits for: one or, while its stores are opened, one a store. */
  private val calls =
    new ThreadPoolExecutor(0, Int.MaxValue, 10, TimeUnit.SECONDS, new SynchronousQueue, DaemonThreads("lamina-call"))

  /** A thousand stores that close at once take turns: nobody waits for them. */
  private val closing = DaemonThreads.pool("lamina-close", 4)

  /**
   * Runs a control call so that a task that is killed stops at once, also while the storage hangs: its thread does not
   * wait on the connection. A call that nobody waits for goes on and ends with its deadline.
   *
   * @param late gets an answer that nobody has waited for
   */
  private def interruptibly[A](call: => A, late: A => Unit = (_: A) => ()): A =
    if (TaskContext.get() == null) call
    else {
      val answer = new CompletableFuture[A]
      calls.execute { () =>
        try {
          val result = call
          if (!answer.complete(result)) late(result)
        } catch { case error: Throwable => answer.completeExceptionally(error) }
      }
      try answer.get()
      catch {
        case failed: ExecutionException => throw failed.getCause
        case error: InterruptedException =>
          if (!answer.completeExceptionally(error) && !answer.isCompletedExceptionally) late(answer.join())
          throw error
      }
    }

  /** What the local copies of all stores took when the last commit of this JVM was durable. */
  @volatile var copiedBytes = 0L

  /** What tables and merges of all stores took then on the local disk. */
  @volatile var localBytes = 0L

  private val ChangelogKey = StoreSettings.Prefix + "changelog.enabled"
  private val CompactionKey = StoreSettings.Prefix + "compaction.mode"

  /** What this JVM has been warned of: once is enough. */
  private val warned = ConcurrentHashMap.newKeySet[String]()

  private def warnings(opened: JValue): Seq[String] = opened \ "warnings" match {
    case JArray(texts) => texts.flatMap(string).filter(warned.add)
    case _ => Nil
  }

  private def taskAttempt: Long = Option(TaskContext.get()).fold(0L)(_.taskAttemptId())

  private[lamina] def string(value: JValue): Option[String] = value match {
    case JString(text) => Some(text)
    case _ => None
  }

  private[lamina] def long(value: JValue): Option[Long] = value match {
    case JInt(number) => Some(number.toLong)
    case _ => None
  }

  private def text(value: JValue): String = value match {
    case JString(text) => text
    case JNull | JNothing => ""
    case JArray(_) | JObject(_) => compact(render(value))
    case other => String.valueOf(other.values)
  }

  private def loadHeader(header: JValue): LoadHeader = {
    def counts(what: String) = header \ "counts" match {
      case JObject(fields) => fields.flatMap { case (family, count) =>
          long(count \ what).map(family.toInt -> _)
        }.toMap
      case _ => Map.empty[Int, Long]
    }
    LoadHeader(
      string(header \ "attempt"),
      header \ "start" == JString("have"),
      ColumnFamilies.fromJson(header),
      counts("rows"),
      counts("bytes"),
      InPlace.fromJson(header \ "in_place"),
      long(header \ "replayed_bytes").getOrElse(0L)
    )
  }
}
