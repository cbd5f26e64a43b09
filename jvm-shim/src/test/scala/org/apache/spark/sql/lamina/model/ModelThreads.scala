package org.apache.spark.sql.lamina.model

import java.util.concurrent.ConcurrentLinkedQueue
import java.util.concurrent.locks.{Lock, LockSupport}

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.Random

import org.apache.spark.sql.lamina.{LiveTable, Scheduling}

/** A rule of the model that does not hold, by name. */
final class Violation(rule: String, detail: String, cause: Throwable = null)
    extends AssertionError(s"[$rule] $detail", cause)

/** The threads of a run of the model: tasks, maintenance, uploads. */
private[lamina] trait ModelThreads extends Scheduling {

  /** A thread that ends by itself. */
  def start(name: String)(body: => Unit): Unit

  /** Others may go on before the calling thread does. */
  def step(what: => String): Unit

  /** As `step`, where a thread that was interrupted stops. */
  def interruptibly(what: => String): Unit

  /** Waits until a condition holds that other threads bring about; can be interrupted. */
  def awaitTrue(what: => String)(condition: => Boolean): Unit

  /** Does nothing for a time, which others use. */
  def rest(milliseconds: Int): Unit

  /** A name that `start` was given. */
  def interrupt(name: String): Unit

  /** The calling thread goes on as if nobody had interrupted it. */
  def forgetInterruption(): Unit

  /** Whether one thread runs at a time. */
  def isStepped: Boolean

  /** One of the numbers below `bound`. */
  def choose(bound: Int): Int

  /** What follows when a table asks to be reclaimed. */
  val reclaims = new ConcurrentLinkedQueue[LiveTable]
  override def reclaim(table: LiveTable): Unit = { reclaims.add(table); () }

  /** What follows when the thread of a task leaves it, by task. */
  private val leaving = mutable.HashMap.empty[Long, mutable.ArrayBuffer[() => Unit]]

  /** The calling thread runs a task from now on. */
  def enterTask(task: Long): Unit = synchronized { leaving(task) = mutable.ArrayBuffer.empty }

  /** The calling thread has left the task, and has none of its rows in hands. */
  def leaveTask(task: Long): Unit = synchronized(leaving.remove(task)).get.foreach(_())

  override def whenLeft(thread: Thread, task: Long)(action: () => Unit): Unit = {
    val runs = synchronized(leaving.get(task).map(_ += action).isDefined)
    if (!runs) action()
  }

  /** A thread that leaves its task has seen to everything that follows. */
  override def awaitLeft(condition: () => Boolean): Unit = ()

  def oneIn(count: Int): Boolean = choose(count) == 0
  def oneOf[A](all: collection.Seq[A]): A = all(choose(all.size))
}

/** Threads as the JVM runs them, with choices of their own. */
private[lamina] final class FreeThreads(seed: Long) extends ModelThreads {
  private val threads = new ConcurrentLinkedQueue[Thread]
  private val failures = new ConcurrentLinkedQueue[Throwable]
  private val random = ThreadLocal.withInitial(() => new Random(seed))

  override def start(name: String)(body: => Unit): Unit = {
    val choices = new Random(seed + name.hashCode)
    val thread = new Thread(
      () => {
        random.set(choices)
        try body
        catch { case error: Throwable => failures.add(error) }
      },
      name
    )
    thread.setDaemon(true)
    threads.add(thread)
    thread.start()
  }

  /** Waits until all threads have ended, as long as `patienceMs`; throws what one of them threw. */
  def join(patienceMs: Long): Unit = {
    val until = System.nanoTime() + patienceMs * 1000000L
    // Those that tasks start are added meanwhile.
    threads.asScala.foreach { thread =>
      thread.join(math.max(1L, (until - System.nanoTime()) / 1000000L))
      if (thread.isAlive && failures.isEmpty)
        throw new Violation(Rules.NoWaitForEver, thread.getStackTrace.mkString(s"$thread does not end: ", "\n  ", ""))
    }
    failures.asScala.foreach(failure => throw failure)
  }

  override def step(what: => String): Unit = if (oneIn(4)) Thread.`yield`()
  override def interruptibly(what: => String): Unit = {
    if (Thread.interrupted()) throw new InterruptedException(what)
    step(what)
  }
  override def awaitTrue(what: => String)(condition: => Boolean): Unit = while (!condition) Thread.sleep(1L)
  override def rest(milliseconds: Int): Unit = LockSupport.parkNanos(milliseconds * 10000L)
  override def interrupt(name: String): Unit = threads.asScala.filter(_.getName.startsWith(name)).foreach(_.interrupt())
  override def forgetInterruption(): Unit = { Thread.interrupted(); () }
  override def isStepped: Boolean = false
  override def choose(bound: Int): Int = random.get.nextInt(bound)
  override def nanoTime(): Long = Scheduling.Threads.nanoTime()
  override def acquire(lock: Lock): Unit = Scheduling.Threads.acquire(lock)
  override def await(monitor: AnyRef, milliseconds: Long): Unit = Scheduling.Threads.await(monitor, milliseconds)
}
