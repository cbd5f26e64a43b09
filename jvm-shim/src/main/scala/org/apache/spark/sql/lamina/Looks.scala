package org.apache.spark.sql.lamina

import java.util.concurrent.{ExecutionException, ExecutorService, Future, TimeUnit}

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/**
 * Looks for objects on other threads: at most one goes on for each object, and one that hangs holds nobody up who hears of the
 * object meanwhile. After each look in vain the next one waits longer, but for an object that is newly said to be there: so who
 * waits for many costs the storage a few requests for each. Not thread-safe.
 *
 * @param exists may fail; then nothing is known
 * @param isSaid whether somebody says that an object is there
 * @param nanos the time
 */
private[lamina] final class Looks(
    threads: ExecutorService,
    exists: String => Boolean,
    isSaid: String => Boolean = _ => false,
    nanos: () => Long = () => System.nanoTime()
) extends Logging {
  import Looks._

  private val going = mutable.HashMap.empty[String, Going]
  private val inVain = mutable.HashMap.empty[String, InVain]
  private val failed = mutable.HashMap.empty[String, Long]
  private val failures = mutable.HashMap.empty[String, Throwable]

  /** Why the last look for an object gave nothing, if one has failed. */
  def failure(log: String): Option[Throwable] = failures.get(log)

  /** Whether a look for an object goes on. */
  def isGoing(log: String): Boolean = going.get(log).exists(!_.look.isDone)

  /** What a look has found that has just ended; begins the next one where none goes on and it is time. */
  def found(log: String): Option[Boolean] = going.get(log) match {
    case None =>
      if (isDue(log)) begin(log)
      None
    case Some(Going(look, wasSaid)) if look.isDone =>
      going.remove(log)
      val there = result(log, look)
      if (!there.contains(true)) {
        val pauseMs = inVain.get(log) match {
          case Some(last) if last.wasSaid || !wasSaid => math.min(2 * last.pauseMs, LongestPauseMs)
          case None if !wasSaid => FirstPauseMs
          case _ => SaidPauseMs
        }
        inVain.put(log, InVain(nanos(), pauseMs, wasSaid))
        if (isDue(log)) begin(log)
      }
      there
    case _ => None
  }

  /** What was said since the last look began is looked for at once. */
  private def isDue(log: String): Boolean = inVain.get(log).forall { last =>
    isSaid(log) && !last.wasSaid || nanos() - last.at >= TimeUnit.MILLISECONDS.toNanos(last.pauseMs)
  }

  /** The same by looks alone that began after the first call of this; that it is not there, no sooner than so long after that. */
  def afterFailure(log: String, graceMs: Long): Option[Boolean] = {
    val since = failed.getOrElseUpdate(
      log, {
        going.remove(log).foreach(_.look.cancel(true))
        inVain.remove(log)
        nanos()
      }
    )
    found(log).filter(there => there || nanos() - since >= TimeUnit.MILLISECONDS.toNanos(graceMs))
  }

  /** Ends all that go on. */
  def end(): Unit = going.values.foreach(_.look.cancel(true))

  private def begin(log: String): Unit = going.put(log, Going(threads.submit(() => exists(log)), isSaid(log)))

  private def result(log: String, look: Future[Boolean]): Option[Boolean] =
    try Some(look.get())
    catch {
      case failed: ExecutionException => failed.getCause match {
          case NonFatal(error) =>
            // once: it is looked for often
            if (failures.put(log, error).isEmpty)
              logWarning(s"log object $log could not be looked for, and is again", error)
            None
          case error => throw error
        }
    }
}

private object Looks {
  private val FirstPauseMs = 50L
  private val LongestPauseMs = 500L
  private val SaidPauseMs = 10L

  /** @param wasSaid whether the object was said to be there when this look began */
  private final case class Going(look: Future[Boolean], wasSaid: Boolean)

  /** The last look that found nothing: when that was heard, and how long the next one waits. */
  private final case class InVain(at: Long, pauseMs: Long, wasSaid: Boolean)
}
