package org.apache.spark.sql.lamina

import scala.collection.mutable

import org.json4s.JValue

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.wire.CommitAnswer

/**
 * A commit that was accepted and whose file is not known to be durable yet.
 *
 * Whoever needs to know settles it: the end of the task, the next open of the store, the closing of the provider. The
 * first to do so waits; the others get the same outcome. A commit that failed takes the table back to its base.
 */
final class DurableCommit(live: LiveTable, answer: CommitAnswer, onDurable: (JValue, Long) => Unit) extends Logging {
  private val logObject = LaminaCheckpointFileManager.logOf(answer.attempt)
  private var settled = false
  @volatile private var failure: Throwable = _

  /** Why it did not become durable, once that is known. */
  def failed: Option[Throwable] = Option(failure)

  /**
   * Waits for the outcome; null when the file is durable. Must not be called under the table's lock.
   *
   * @param isKilled whether nobody needs the outcome any more
   * @throws InterruptedException if this thread is interrupted, or `isKilled`; the commit is settled without it then
   */
  def settle(isKilled: () => Boolean = () => false): Throwable = {
    val outcome =
      try Right(answer.await(isKilled))
      catch {
        case interruption: InterruptedException =>
          answer.whenDone { () => settle(() => false); () }
          throw interruption
        case error: Throwable => Left(error)
      }
    finish(outcome)
  }

  /**
   * As `settle`, for an open: other stores may come only after it, so the commit does not wait for them for long. Several actions
   * of one batch open a store one after the other.
   */
  def settleForOpen(): Unit = {
    if (isInLog) answer.hurry()
    settle()
    ()
  }

  /** Settles it when its outcome comes, without a thread that waits: the entry of Spark's commit log does. */
  def settleWhenDone(): Unit = {
    logObject.foreach(BarrierNews.begun)
    answer.whenDone { () =>
      val failure = settle()
      logObject.foreach { name =>
        if (failure == null) BarrierNews.written(name)
        else if (isFinal(failure)) BarrierNews.failed(name, failure)
      }
    }
  }

  /** Whether the entry of Spark's commit log may wait for it: its id names a log object. */
  def isInLog: Boolean = logObject.isDefined

  /** That somebody has waited for too long, or does not understand the engine any more, says nothing of the object. */
  private def isFinal(error: Throwable): Boolean = error match {
    case ours: LaminaError => ours.kind != LaminaError.EngineDeadline && ours.kind != LaminaError.EngineProtocol
    case _ => true
  }

  /** For the barrier; of the many commits in an object only the first one that hears of a failure writes it down. */
  private def tell(name: String, failure: Option[Throwable]): Unit = {
    if (DurableLogs.outcome(name).isEmpty)
      failure.foreach(logWarning(s"Commits in log object $name did not become durable", _))
    DurableLogs.tell(name, failure)
  }

  private def finish(outcome: Either[Throwable, JValue]): Throwable = synchronized {
    if (!settled) {
      if (outcome.left.forall(isFinal)) logObject.foreach(tell(_, outcome.left.toOption))
      outcome match {
        case Right(durable) => onDurable(durable, answer.tookNanos / 1000000L)
        case Left(error) => failure = error
      }
      settled = true
      live.synchronized {
        if (live.pending eq this) live.pending = null
        // A table that cannot go back is empty then, and is loaded when it is opened.
        try if (failure != null) live.rollBack(answer.attempt)
        catch { case error: Throwable => failure.addSuppressed(error) }
        live.rest()
        live.notifyAll()
      }
    }
    failure
  }
}

/**
 * Durability level `task`: the commits of a task's stores are accepted one after the other and become durable
 * together; the task ends when all of them are. A commit that fails fails the task, which Spark then tries again from
 * the same version.
 *
 * Durability level `executor`: the task ends when they are accepted, but for those that are files of their own. The table has a
 * commit as pending until its outcome comes, for which whoever opens it next waits. The entry of Spark's commit log waits for
 * all (`LaminaCheckpointFileManager`).
 */
object TaskDurability extends Logging {
  private val waiting = mutable.HashMap.empty[Long, mutable.ArrayBuffer[DurableCommit]]

  /** Makes the end of `task` wait for a commit. */
  def defer(task: TaskContext, commit: DurableCommit): Unit = {
    val id = task.taskAttemptId()
    val first = synchronized {
      val commits = waiting.getOrElseUpdate(id, mutable.ArrayBuffer.empty)
      commits += commit
      commits.size == 1
    }
    if (first) task.addTaskCompletionListener[Unit](ended => settle(ended, id))
  }

  private def settle(task: TaskContext, id: Long): Unit = {
    val commits = synchronized(waiting.remove(id)).fold(Seq.empty[DurableCommit])(_.toSeq)
    // Each is waited for, also after a failure, so that every table knows where it stands.
    val outcomes = commits.map { commit =>
      try commit.settle(() => task.isInterrupted())
      catch {
        case interruption: InterruptedException =>
          Thread.currentThread.interrupt()
          interruption
      }
    }
    outcomes.find(_ != null).foreach { failure =>
      // A task that failed already keeps its own reason.
      if (task.isFailed() || task.isInterrupted())
        logWarning("A commit of a failed task did not become durable", failure)
      else throw failure match {
        case ours: LaminaError => ours
        case other =>
          new LaminaError(LaminaError.StorageFailed, s"a commit did not become durable: ${other.getMessage}", other)
      }
    }
  }
}
