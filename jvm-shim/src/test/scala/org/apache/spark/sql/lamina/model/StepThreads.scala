package org.apache.spark.sql.lamina.model

import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.{Lock, LockSupport}

import scala.collection.mutable
import scala.util.Random

/**
 * Threads of which one runs at a time, until its next step or wait; a seed says which. The clock goes on with the steps,
 * and faster where all wait.
 *
 * A wait on a monitor looks again when another thread has done something. Where nobody can, and an hour on the clock
 * changes nothing, the threads wait for ever.
 */
private[lamina] final class StepThreads(seed: Long) extends ModelThreads {
  private final class Stepped(val name: String, body: () => Unit) {
    val thread = new Thread(() => run(), name)
    var isReady: () => Boolean = () => true
    var isInterruptible = false
    var isInterrupted = false

    /** What it waits for by looking again and again, or null, and what had happened when it looked last. */
    var polled: AnyRef = _
    var looked = 0L
    var at = "start"
    var hasEnded = false
    var failure: Throwable = _

    private def run(): Unit = {
      stepped.set(this)
      awaitTurn(this)
      try body()
      catch { case error: Throwable => failure = error }
      hasEnded = true
      giveBack()
    }
  }

  private val random = new Random(seed)
  private val threads = mutable.ArrayBuffer.empty[Stepped]
  private val stepped = new ThreadLocal[Stepped]
  private val main = Thread.currentThread()
  private var now = 0L

  /** Grows with each step that was not just another look. */
  private var happened = 0L

  /** Whose turn it is; null for the one who chooses. */
  @volatile private var turn: Stepped = _

  /** Who went on, and from where. */
  val steps = mutable.ArrayBuffer.empty[String]

  override def start(name: String)(body: => Unit): Unit = {
    val added = new Stepped(name, () => body)
    added.thread.setDaemon(true)
    threads += added
    added.thread.start()
  }

  /** Lets the threads run until all have ended, and looks after each step; throws what one of them, or a look, threw. */
  def run(look: () => Unit): Unit = {
    var idle = 0
    while (threads.exists(!_.hasEnded)) {
      val ready = threads.filter(isReady)
      if (ready.isEmpty) {
        if (idle == StepThreads.MostIdle) throw new Violation(Rules.NoWaitForEver, waits)
        now += TimeUnit.MILLISECONDS.toNanos(20L << idle)
        idle += 1
        threads.foreach(_.looked = -1L)
      } else {
        val next = ready(random.nextInt(ready.size))
        now += TimeUnit.MILLISECONDS.toNanos(random.nextInt(20).toLong)
        steps += s"${next.name}: ${next.at}"
        val before = next.polled
        give(next)
        if (next.failure != null) throw next.failure
        val isNews = next.hasEnded || before == null || (next.polled ne before)
        if (isNews) {
          happened += 1
          idle = 0
        }
        next.looked = happened
        look()
      }
    }
  }

  private def isReady(one: Stepped): Boolean = !one.hasEnded &&
    ((one.isInterruptible && one.isInterrupted) || (if (one.polled == null) one.isReady() else one.looked < happened))

  private def waits: String = threads.filterNot(_.hasEnded).map { one =>
    s"${one.name} at ${one.at}\n    ${one.thread.getStackTrace.mkString("\n    ")}"
  }.mkString("\n")

  private def give(next: Stepped): Unit = {
    val patience = System.nanoTime() + TimeUnit.SECONDS.toNanos(StepThreads.PatienceSeconds)
    turn = next
    LockSupport.unpark(next.thread)
    while (turn != null) {
      LockSupport.parkNanos(1000000L)
      if (System.nanoTime() > patience)
        throw new Violation(Rules.NoHiddenWait, next.thread.getStackTrace.mkString(s"${next.name}: ", "\n  ", ""))
    }
  }

  private def giveBack(): Unit = {
    turn = null
    LockSupport.unpark(main)
  }

  private def awaitTurn(me: Stepped): Unit = while (turn ne me) LockSupport.park()

  private def pause(what: String, interruptible: Boolean, polled: AnyRef = null)(isReady: => Boolean)(
      wait: Stepped => Unit
  ): Unit = {
    val me = stepped.get
    if (me != null) {
      if (Thread.interrupted()) me.isInterrupted = true
      stopIfInterrupted(me, interruptible)
      me.at = what
      me.isInterruptible = interruptible
      me.isReady = () => isReady
      me.polled = polled
      giveBack()
      wait(me)
      stopIfInterrupted(me, interruptible)
    }
  }

  private def stopIfInterrupted(me: Stepped, interruptible: Boolean): Unit = if (interruptible && me.isInterrupted) {
    me.isInterrupted = false
    me.polled = null
    throw new InterruptedException(me.at)
  }

  override def step(what: => String): Unit = pause(what, interruptible = false)(true)(awaitTurn)
  override def interruptibly(what: => String): Unit = pause(what, interruptible = true)(true)(awaitTurn)
  override def awaitTrue(what: => String)(condition: => Boolean): Unit =
    if (!condition) pause(what, interruptible = true)(condition)(awaitTurn)

  override def rest(milliseconds: Int): Unit = {
    val until = now + TimeUnit.MILLISECONDS.toNanos(milliseconds.toLong)
    awaitTrue("rests")(now >= until)
  }

  override def interrupt(name: String): Unit =
    threads.filter(one => one.name == name && !one.hasEnded).foreach(_.isInterrupted = true)

  override def forgetInterruption(): Unit = {
    Thread.interrupted()
    stepped.get.isInterrupted = false
  }

  override def isStepped: Boolean = true

  override def choose(bound: Int): Int = random.nextInt(bound)

  override def nanoTime(): Long = now

  override def acquire(lock: Lock): Unit = {
    interruptibly("takes its turn")
    while (!lock.tryLock()) pause("waits for its turn", interruptible = true, polled = lock)(true)(awaitTurn)
  }

  /** The monitor is given back meanwhile, as by any wait. */
  override def await(monitor: AnyRef, milliseconds: Long): Unit =
    pause("waits at the table", interruptible = true, polled = monitor)(true) { me =>
      while (turn ne me) monitor.wait(1L)
    }
}

private object StepThreads {

  /** Doublings of 20 ms: an hour. */
  private val MostIdle = 17
  private val PatienceSeconds = 60L
}
