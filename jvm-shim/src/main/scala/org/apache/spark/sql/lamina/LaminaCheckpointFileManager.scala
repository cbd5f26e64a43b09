package org.apache.spark.sql.lamina

import java.io.ByteArrayOutputStream
import java.lang.reflect.InvocationTargetException
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.TimeUnit
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.Try
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FileStatus, Path, PathFilter, UnsupportedFileSystemException}

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.execution.streaming.checkpointing.{
  CheckpointFileManager,
  FileContextBasedCheckpointFileManager,
  FileSystemBasedCheckpointFileManager
}
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.wire.DaemonThreads
import org.apache.spark.util.Utils

/**
 * The barrier of durability level `executor`: an entry of Spark's commit log is written when the log objects that its ids name
 * are there, and not before. Everything else is what the file manager does that Spark would have chosen.
 *
 * Set by `spark.sql.streaming.checkpointFileManagerClass`. No messages between processes are needed: an id names its object. Those
 * of `BarrierNews` say when a look is worth it, and end a wait sooner that is for nothing.
 */
final class LaminaCheckpointFileManager(path: Path, conf: Configuration) extends CheckpointFileManager {
  import LaminaCheckpointFileManager._

  private val inner = chosenByUser(path, conf).getOrElse(chosenBySpark(path, conf))

  BarrierNews.listen()

  override def createAtomic(file: Path, overwriteIfPossible: Boolean): CancellableFSDataOutputStream =
    if (isCommit(file)) new HeldEntry(file, overwriteIfPossible, new ByteArrayOutputStream)
    else inner.createAtomic(file, overwriteIfPossible)

  override def open(file: Path): FSDataInputStream = inner.open(file)

  override def list(directory: Path, filter: PathFilter): Array[FileStatus] = inner.list(directory, filter)

  override def mkdirs(directory: Path): Unit = inner.mkdirs(directory)

  override def exists(file: Path): Boolean = inner.exists(file)

  override def delete(file: Path): Unit = inner.delete(file)

  override def isLocal: Boolean = inner.isLocal

  override def createCheckpointDirectory(): Path = inner.createCheckpointDirectory()

  override def close(): Unit = {
    looking.shutdownNow()
    lookingElsewhere.shutdownNow()
    inner.close()
  }

  /**
   * Threads that look for objects, which end when there are none to look for. One where the file manager is of the user's own:
   * Spark's may be asked by several threads. Each query has its own threads, so that looks that hang hold up no other one.
   */
  private lazy val looking =
    DaemonThreads.pool("lamina-barrier", if (isSparks(inner)) LooksAtOnce else 1)

  /** Those that look in places that nothing is written to any more, which may hang. */
  private lazy val lookingElsewhere =
    if (isSparks(inner)) DaemonThreads.pool("lamina-barrier-elsewhere", LooksElsewhere) else looking

  /** An entry in memory until it is whole, and then until what it names is durable. */
  private final class HeldEntry(file: Path, overwriteIfPossible: Boolean, bytes: ByteArrayOutputStream)
      extends CancellableFSDataOutputStream(bytes) {
    private var ended = false

    override def cancel(): Unit = ended = true

    override def close(): Unit = if (!ended) {
      ended = true
      val entry = bytes.toByteArray
      val logs = logsOf(new String(entry, UTF_8))
      if (logs.nonEmpty && isFirst.getAndSet(false)) learnFrom(file)
      awaitDurable(file, logs)
      val written = inner.createAtomic(file, overwriteIfPossible)
      try {
        written.write(entry)
        written.close()
      } catch {
        case error: Throwable =>
          try written.cancel()
          catch { case NonFatal(another) => error.addSuppressed(another) }
          throw error
      }
    }
  }

  private val isFirst = new AtomicBoolean(true)

  /**
   * Learns from the entry before one which objects are durable: those that it names, or it would not be there. Else a driver that has
   * just started would look for each object in which a store that rests has its last commit.
   */
  private def learnFrom(file: Path): Unit = file.getName.toLongOption.filter(_ > 0).foreach { batch =>
    try {
      val entry = inner.open(new Path(file.getParent, (batch - 1).toString))
      val logs =
        try logsOf(new String(entry.readAllBytes(), UTF_8))
        finally entry.close()
      logs.filter(DurableLogs.outcome(_).isEmpty).foreach(DurableLogs.tell(_, None))
    } catch {
      // they are looked for
      case NonFatal(_) =>
    }
  }

  private def awaitDurable(file: Path, logs: Set[String]): Unit = if (logs.nonEmpty) {
    val state = new Path(file.getParent.getParent, "state")
    val started = System.nanoTime()
    val places = placesOf(state)
    def waitedMs = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started)
    val looks = new Looks(looking, places.exists, DurableLogs.isSaid)
    val elsewhere = new Looks(lookingElsewhere, places.isElsewhere)
    def isThere(log: String) =
      isDurable(file, places, looks, log) || waitedMs >= ElsewhereAfterMs && isFound(elsewhere, log)
    var (waited, pauseMs) = (logs, FirstPauseMs)
    try
      while ({ waited = waited.filterNot(isThere); waited.nonEmpty }) {
        if (waitedMs > timeoutMs) {
          val failed =
            waited.toSeq.sorted.flatMap(log =>
              looks.failure(log).orElse(elsewhere.failure(log)).map(log -> _)
            ).headOption
          val log = failed.fold(waited.min)(_._1)
          val why = failed.fold("")(found => s", which could not be looked for: ${found._2}") +
            (if (elsewhere.isGoing(log)) ", and another place of log objects, which was asked for it, does not answer"
             else "")
          throw new LaminaError(
            LaminaError.StorageFailed,
            s"batch ${file.getName} is not committed: ${waited.size} of its ${logs.size} log objects are not known to be durable " +
              s"after $timeoutMs ms, such as ${places.location(log)}$why; $GoesOn",
            failed.map(_._2).orNull
          )
        }
        DurableLogs.await(pauseMs)
        pauseMs = math.min(2 * pauseMs, LongestPauseMs)
      }
    finally {
      looks.end()
      elsewhere.end()
    }
  }

  private def isFound(looks: Looks, log: String): Boolean = {
    val there = looks.found(log).contains(true)
    // a store that rests names the object of its last commit with each batch
    if (there) DurableLogs.tell(log, None)
    there
  }

  /** Whether an object is known to be there: by what was heard of it, or by a look. */
  private def isDurable(file: Path, places: LogPlaces, looks: Looks, log: String): Boolean =
    DurableLogs.outcome(log) match {
      case Some(None) => true
      // of an engine that was lost nobody knows what it has written
      case Some(Some(failure)) => looks.afterFailure(log, if (mayStillCome(failure)) LastUploadsMs else 0L) match {
          case Some(false) => throw new LaminaError(
              LaminaError.StorageFailed,
              s"batch ${file.getName} is not committed: ${places.location(log)} was not written: ${failure.getMessage}; $GoesOn",
              failure
            )
          case Some(true) =>
            DurableLogs.tell(log, None)
            true
          case None => false
        }
      case None => isFound(looks, log)
    }

  private var ofState: Option[(Path, LogPlaces)] = None

  /** What is known of the places of log objects, kept for as long as this writes one log. */
  private def placesOf(state: Path): LogPlaces = synchronized {
    val found = ofState.collect { case (`state`, places) => places }.getOrElse(new LogPlaces(state, conf, inner))
    ofState = Some(state -> found)
    found.begin()
    found
  }

  private def timeoutMs: Long =
    Option(conf.get(TimeoutKey)).flatMap(text => Try(text.trim.toLong).toOption).getOrElse(DefaultTimeoutMs)
}

private[lamina] object LaminaCheckpointFileManager {
  private val TimeoutKey = StoreSettings.Prefix + "changelog.barrierTimeoutMs"
  private val DefaultTimeoutMs = 300000L
  private val GoesOn = "the query goes on from the batch before when it is started again"
  private val FirstPauseMs = 1L
  private val LongestPauseMs = 50L

  /**
   * Whether batches wait in place of tasks.
   *
   * @throws LaminaError `settings.invalid` where nobody would wait: Spark would take a batch for durable that is not
   */
  def isAskedFor(settings: StoreSettings, conf: Configuration): Boolean = {
    val asked = settings.get("durability.level").exists(_.trim.equalsIgnoreCase("executor"))
    val name = classOf[LaminaCheckpointFileManager].getName
    if (asked && conf.get(ClassKey) != name)
      throw new LaminaError(
        LaminaError.SettingsInvalid,
        s"${StoreSettings.Prefix}durability.level is 'executor', and nothing keeps Spark from committing a batch before it is " +
          s"durable: set $ClassKey to $name, or use durability.level task"
      )
    asked
  }

  private val ClassKey = "spark.sql.streaming.checkpointFileManagerClass"

  /** An attempt's id whose commit is in a log object, wherever it stands. */
  private val InLog = """L1\.\d+\.\d+\.g\.([0-9a-f]{32})-\d+\.[0-9a-f]{32}""".r

  /** The log objects that the ids in an entry of Spark's commit log name. */
  def logsOf(entry: String): Set[String] = InLog.findAllMatchIn(entry).map(_.group(1)).toSet

  /** The log object that an attempt's id names, if it names one. */
  def logOf(attempt: String): Option[String] = InLog.findFirstMatchIn(attempt).map(_.group(1))

  def objectOf(state: Path, log: String): Path = new Path(state, s"_lamina/log/$log.log")

  private def isCommit(file: Path): Boolean =
    file.getParent != null && file.getParent.getName == "commits" && file.getName.nonEmpty && file.getName.forall(
      _.isDigit
    )

  private val InnerKey = StoreSettings.Prefix + "changelog.checkpointFileManagerClass"

  private val LooksAtOnce = 64

  private val LooksElsewhere = 4

  /** What an executor uploads is there by then, as a rule. */
  private val ElsewhereAfterMs = 500L

  /** An engine whose JVM has gone publishes what it has accepted within 3 seconds. */
  private val LastUploadsMs = 5000L

  private def mayStillCome(failure: Throwable): Boolean = failure.getCause.isInstanceOf[ExecutorLost]

  private def isSparks(manager: CheckpointFileManager): Boolean = {
    val name = manager.getClass.getName
    name.startsWith("org.apache.spark.") && !name.startsWith("org.apache.spark.sql.lamina.")
  }

  /** As Spark does where no class is set. */
  private def chosenBySpark(path: Path, conf: Configuration): CheckpointFileManager =
    try new FileContextBasedCheckpointFileManager(path, conf)
    catch { case _: UnsupportedFileSystemException => new FileSystemBasedCheckpointFileManager(path, conf) }

  /** The one that the user says. */
  private def chosenByUser(path: Path, conf: Configuration): Option[CheckpointFileManager] =
    Option(conf.get(InnerKey)).map(_.trim).filterNot(name => name.isEmpty || name.equalsIgnoreCase("none")).map {
      name =>
        def refused(why: Any, cause: Throwable): LaminaError = new LaminaError(
          LaminaError.SettingsInvalid,
          s"$InnerKey is '$name', which is no checkpoint file manager that can be made here: $why",
          cause
        )
        if (name == classOf[LaminaCheckpointFileManager].getName)
          throw refused("it would be put around itself; leave it out, and Spark's own is taken", null)
        try Utils.classForName[AnyRef](name).getConstructor(classOf[Path], classOf[Configuration])
            .newInstance(path, conf) match {
            case manager: CheckpointFileManager => manager
            case other => throw refused(s"${other.getClass} is none", null)
          }
        catch {
          case error: InvocationTargetException => throw refused(error.getCause, error.getCause)
          case error: ReflectiveOperationException => throw refused(error, error)
        }
    }
}
