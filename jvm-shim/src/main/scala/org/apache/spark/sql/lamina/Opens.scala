package org.apache.spark.sql.lamina

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.StateStoreErrors

/** Where an open of a store stands. */
sealed abstract class OpenState(override val toString: String)

object OpenState {

  /** Reads version N. */
  case object Reading extends OpenState("READING")

  /** Owns the store's one transaction. */
  case object Writing extends OpenState("UPDATING")

  /** Its transaction is being sent, without the table's lock: nobody may change the table. */
  case object Sending extends OpenState("COMMITTING")

  case object Committed extends OpenState("COMMITTED")
  case object Aborted extends OpenState("ABORTED")
  case object Released extends OpenState("RELEASED")

  /** Another open took the transaction over. */
  case object Lost extends OpenState("LOST")
}

/** What can happen to an open. */
sealed abstract class OpenAction(override val toString: String)

object OpenAction {
  case object Read extends OpenAction("read")
  case object Update extends OpenAction("update")
  case object Upgrade extends OpenAction("upgrade")
  case object Send extends OpenAction("commit")
  case object Commit extends OpenAction("end the commit")

  /** The commit failed: the transaction is open as before. */
  case object Fail extends OpenAction("fail the commit")
  case object Abort extends OpenAction("abort")
  case object Release extends OpenAction("release")
  case object TakeOver extends OpenAction("take over")
}

/**
 * One open of a store: its stamp, its task and its state. Everything is done under the lock of the open's table.
 *
 * @param task the task that opened it, or null
 * @param thread whose open it is; another one may do the work of opening for it
 */
final class Open(
    val task: TaskContext,
    writes: Boolean,
    scheduling: Scheduling = Scheduling.Threads,
    thread: Thread = Thread.currentThread()
) {
  import OpenState._

  /** Unique in this JVM; also the id of the open among the table's readers. */
  val stamp: Long = Open.stamps.incrementAndGet()

  private val taskThread = TaskThreads.own(thread, task)

  /** Read without the lock by who walks rows that were fetched under it. */
  @volatile private var current: OpenState = if (writes) Writing else Reading

  private var committedNanos = 0L

  /** Scans that were begun after the commit and are neither exhausted nor closed. */
  private[lamina] var scans = 0

  /** Its task has ended while its commit was being sent: it leaves the table when that ends. */
  private[lamina] var leavesLater = false

  /** The table whose rows it reads; null when they are given up. An open that was upgraded may have left another one. */
  @volatile private[lamina] var table: LiveTable = _

  /** Its rows are given up: it reads none any more. */
  private[lamina] def left: Boolean = table == null

  def state: OpenState = current

  def isWriting: Boolean = current eq Writing

  /**
   * Whether the calling thread may read rows where they lie. Only the thread that runs the open's task may: its end is
   * known. All others get copies.
   */
  def readsInPlace: Boolean = Thread.currentThread() eq taskThread

  /** Runs `action` when nobody can have a row in hands that was handed out where it lies. */
  def whenUnread(action: () => Unit): Unit =
    if (taskThread == null) action() else scheduling.whenLeft(taskThread, task.taskAttemptId())(action)

  /** Whether its task has ended; its thread may still run listeners. */
  def isOver: Boolean = task != null && task.isCompleted()

  /**
   * Whether its task, which goes on, reads what it has committed: it does so at once or, for all that is known, not at
   * all. Then it loses its rows when the table moves.
   */
  def isReadOn: Boolean = (current eq Committed) && task != null && !isOver &&
    (scans > 0 || scheduling.nanoTime() - committedNanos < Open.BeginsToReadNanos)

  /** Outside of tasks only the thread that opened ends an open; where that opens again, nobody will. */
  def isAbandonedBy(opener: Thread): Boolean = task == null && (thread eq opener)

  /** Performs the transition, or throws Spark's error for an operation out of order. */
  def transition(action: OpenAction): Unit = {
    current = Open.transitions.getOrElse((current, action), throw refused(action))
    if (action eq OpenAction.Commit) committedNanos = scheduling.nanoTime()
  }

  def allows(action: OpenAction): Boolean = Open.transitions.contains((current, action))

  private def refused(action: OpenAction): Throwable =
    StateStoreErrors.stateStoreOperationOutOfOrder(s"Cannot $action after $current")

  override def toString: String = {
    val by = if (task == null) "no task" else s"task ${task.taskAttemptId()} (partition ${task.partitionId()})"
    s"open $stamp of $by, $current"
  }
}

object Open {
  import OpenAction._
  import OpenState._

  /** How long after a commit its task is taken for one that will read on. */
  private val BeginsToReadNanos = 1000000000L

  private val stamps = new AtomicLong()

  /** (state, action) → next state; what is not here is an error. */
  private val transitions: Map[(OpenState, OpenAction), OpenState] = Map(
    (Reading, Read) -> Reading,
    (Reading, Upgrade) -> Writing,
    (Reading, Abort) -> Aborted,
    (Reading, Release) -> Released,
    (Writing, Read) -> Writing,
    (Writing, Update) -> Writing,
    (Writing, Send) -> Sending,
    (Writing, Abort) -> Aborted,
    (Writing, TakeOver) -> Lost,
    (Sending, Commit) -> Committed,
    (Sending, Fail) -> Writing,
    (Committed, Read) -> Committed,
    (Aborted, Abort) -> Aborted,
    (Released, Release) -> Released,
    (Released, Abort) -> Released,
    (Lost, Abort) -> Lost
  )
}
