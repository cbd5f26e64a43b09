package org.apache.spark.sql.lamina

import java.util.concurrent.{ExecutionException, ExecutorService, Future}

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/**
 * Looks for objects on other threads: at most one goes on for each object, and one that hangs holds nobody up who hears of the
 * object meanwhile. Not thread-safe.
 *
 * @param exists may fail; then nothing is known, and the next look begins
 */
private[lamina] final class Looks(threads: ExecutorService, exists: String => Boolean) extends Logging {
  private val going = mutable.HashMap.empty[String, Future[Boolean]]
  private val afterFailures = mutable.HashSet.empty[String]
  private val failures = mutable.HashMap.empty[String, Throwable]

  /** Why the last look for an object gave nothing, if one has failed. */
  def failure(log: String): Option[Throwable] = failures.get(log)

  /** Whether a look for an object goes on. */
  def isGoing(log: String): Boolean = going.get(log).exists(!_.isDone)

  /** What the last look has found, if it has; begins the next one where none goes on. */
  def found(log: String): Option[Boolean] = going.get(log) match {
    case None =>
      begin(log)
      None
    case Some(look) if look.isDone =>
      going.remove(log)
      val there = result(log, look)
      if (!there.contains(true)) begin(log)
      there
    case _ => None
  }

  /** The same by looks alone that began after the first call of this. */
  def afterFailure(log: String): Option[Boolean] = {
    if (afterFailures.add(log)) going.remove(log).foreach(_.cancel(true))
    found(log)
  }

  /** Ends all that go on. */
  def end(): Unit = going.values.foreach(_.cancel(true))

  private def begin(log: String): Unit = going.put(log, threads.submit(() => exists(log)))

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
