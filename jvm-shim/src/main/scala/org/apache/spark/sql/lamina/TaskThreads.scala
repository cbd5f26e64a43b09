package org.apache.spark.sql.lamina

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.sql.lamina.wire.DaemonThreads

/**
 * Which thread runs a task, and when it has left it.
 *
 * The end of a task that its context signals is not the end of its thread's work: other listeners follow, and the task's
 * result is serialized. A thread has left a task when it has ended, when its name says another task, or when its whole
 * stack has no task in it. All else counts as still in the task: code of users may rename the thread, and the JVM cuts the
 * bottom of a deep stack off.
 */
private[lamina] object TaskThreads {
  private val Runner = "org.apache.spark.executor.Executor$TaskRunner"

  /** How executors name the thread of a task. */
  private val Name = """\(TID (\d+)\)""".r

  /** A stack of as many frames may be cut off: `-XX:MaxJavaStackTraceDepth`, of which this is the default. */
  private val MostFrames = 1024

  /** Between two looks at the threads of tasks that have ended. */
  private val PollMs = 10L

  /** How long the end of a task is waited for at the cap. */
  private val LeavingTaskNanos = 1000000000L

  private val waiting = mutable.LinkedHashMap.empty[(Thread, Long), mutable.ArrayBuffer[() => Unit]]

  /** Whether `thread` is the one that runs `task`, or ran it last: executors name their threads after the tasks. */
  private def isOf(thread: Thread, task: Long): Boolean = thread.getName.contains(s"(TID $task)")

  /** `thread` where it is the task's own; null for any other one, such as those that feed Python. */
  def own(thread: Thread, task: TaskContext): Thread =
    if (task != null && isOf(thread, task.taskAttemptId())) thread else null

  def runs(thread: Thread, task: Long): Boolean =
    thread.isAlive && !saysAnother(thread.getName, task) && mayBeInTask(thread.getStackTrace)

  private def saysAnother(name: String, task: Long): Boolean =
    Name.findFirstMatchIn(name).exists(_.group(1) != s"$task")

  private def mayBeInTask(stack: Array[StackTraceElement]): Boolean =
    stack.length >= MostFrames || stack.exists(_.getClassName == Runner)

  /** Runs `action` when the thread has left the task: at once, or soon after, on another thread. */
  def whenLeft(thread: Thread, task: Long)(action: () => Unit): Unit =
    if (!runs(thread, task)) action()
    else {
      val first = synchronized {
        waiting.getOrElseUpdate((thread, task), mutable.ArrayBuffer.empty) += action
        waiting.size == 1
      }
      if (first) poll()
    }

  /** Waits, for a moment at most, until threads that have left their tasks have brought about a condition. */
  def await(condition: () => Boolean): Unit = {
    val deadline = System.nanoTime() + LeavingTaskNanos
    while (!condition() && System.nanoTime() < deadline) {
      Thread.sleep(1)
      check()
    }
  }

  private def poll(): Unit = Timer.after(PollMs) {
    try check()
    finally if (synchronized(waiting.nonEmpty)) poll()
  }

  /** Runs the actions of the threads that have left their tasks; one that fails stops none. Takes no lock of a table. */
  def check(): Unit = {
    val left = synchronized(waiting.keys.toSeq).filterNot { case (thread, task) => runs(thread, task) }
    left.flatMap(key => synchronized(waiting.remove(key))).flatten
      .foreach(action => DaemonThreads.guarded("What follows the end of a task")(action()))
  }
}
