package org.apache.spark.sql.lamina.model

import java.util.concurrent.atomic.{AtomicLong, AtomicReference}

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.{TaskContext, TaskContextImpl, TaskKilledException}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina._
import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * One task of a query: it opens a version, mostly changes it and commits, and ends, unless it is killed before.
 *
 * @param key as rows of the store's schemas
 */
private[lamina] final class ModelTask(model: StoreModel, name: String, family: String, key: Long => UnsafeRow)(
    value: Int => UnsafeRow
) {
  import model.threads

  /** Unique in this JVM; the number is within the run. */
  private val id = ModelTask.ids.incrementAndGet()
  private val number = model.newTask()
  private val context: TaskContextImpl = TestTasks.context(id)
  private var committed = Option.empty[(Long, Option[String])]
  private var provider: ModelProvider = _
  private var isRunning = true

  /** From its start to its end, on the calling thread. */
  def run(): Unit = {
    val thread = Thread.currentThread()
    thread.setName(s"$name (TID $id)")
    threads.enterTask(id)
    TaskContext.setTaskContext(context)
    try {
      val failure =
        try { work(); None }
        catch { case error: Throwable => Some(error) }
      failure.foreach {
        case violation: Violation => throw violation
        case error => checkReason(error)
      }
      end(failure)
    } finally {
      synchronized { isRunning = false }
      threads.forgetInterruption()
      model.forget(id)
      threads.leaveTask(id)
      TaskContext.unset()
      thread.setName(name)
    }
  }

  private def end(failure: Option[Throwable]): Unit = {
    failure.foreach(context.markTaskFailed)
    val isDurable =
      try { context.markTaskCompleted(failure); true }
      catch { case NonFatal(error) => checkReason(error); false }
    if (failure.isEmpty && isDurable && !context.isInterrupted()) committed.foreach { case (version, attempt) =>
      if (attempt.exists(model.isFailed))
        throw new Violation(Rules.FailedIsInvisible, s"a task ended well with $attempt")
      if (!attempt.forall(model.isDurable)) throw new Violation(Rules.EndsDurable, s"$attempt")
      model.confirm(version, attempt)
    }
  }

  /** Somebody else kills the task: `interrupt` is for its thread. */
  def kill(interrupt: => Unit): Unit = synchronized {
    if (isRunning) {
      context.markInterrupted("killed")
      interrupt
    }
  }

  private def step(what: String): Unit = {
    threads.interruptibly(s"task $number $what")
    context.getKillReason().foreach(reason => throw new TaskKilledException(reason))
    model.checkKept(id)
  }

  private def work(): Unit = {
    step("begins")
    val (version, base) = model.choose()
    provider = model.provider()
    threads.choose(6) match {
      case 0 | 1 =>
        val reader = open(version, base)(provider.getReadStore(version, base).asInstanceOf[LaminaStateStore])
        read(reader)
        step("has read")
        threads.choose(4) match {
          case 0 => reader.store.release()
          case 1 => reader.store.abort()
          case _ => upgrade(reader, version, base)
        }
      case _ => change(open(version, base)(store(version, base)), version)
    }
    // It goes on for a while with the rows that it has.
    if (threads.oneIn(3)) threads.rest(threads.choose(2000))
  }

  private def store(version: Long, base: Option[String]): LaminaStateStore =
    provider.getStore(version, base, threads.oneIn(6), loadEmpty = false) match {
      case ahead: OpeningStore => ahead.opened
      case store => store.asInstanceOf[LaminaStateStore]
    }

  private def open(version: Long, base: Option[String])(store: => LaminaStateStore): Opened = {
    step(s"opens version $version ${base.getOrElse("")}")
    val one = new Opened(store, model.rowsOf(base))
    // Of the listeners of a task the last comes first: after those of commits, and before that of this open.
    context.addTaskCompletionListener[Unit](_ => one.isOver = true)
    model.add(one)
  }

  private def upgrade(reader: Opened, version: Long, base: Option[String]): Unit = {
    step("upgrades")
    provider.upgradeReadStoreToWriteStore(reader.store, version, base, threads.oneIn(6))
    change(model.add(reader), version)
  }

  /** All rows, with steps between them; stale where the open's rows may go. */
  private def read(one: Opened): Unit =
    try {
      val found = mutable.ArrayBuffer.empty[(Long, Int)]
      val rows = one.store.iterator(family)
      while (rows.hasNext) {
        val pair = rows.next()
        found += pair.key.getLong(0) -> pair.value.getInt(0)
        if (found.size % 3 == 1) {
          model.keep(id, pair.value)
          step("reads a row")
        }
      }
      rows.close()
      model.compare(one, found.toSeq)
    } catch { case StoreModel.Stale(why) => model.checkStale(one, why) }

  private def change(one: Opened, version: Long): Unit = {
    val store = one.store
    for (_ <- 0 until threads.choose(5)) {
      val (at, number) = (threads.choose(12).toLong, ModelTask.newValue())
      step(s"changes $at")
      if (threads.oneIn(3)) {
        store.remove(key(at), family)
        one.rows -= at
      } else {
        store.put(key(at), value(number), family)
        one.rows += at -> number
      }
      model.keep(id, store.get(key(threads.choose(12).toLong), family))
    }
    if (threads.oneIn(3)) read(one)
    step("ends its changes")
    threads.choose(6) match {
      case 0 => store.abort()
      case 1 => onOtherThread(commit(one, version))
      case _ => commit(one, version)
    }
  }

  private def commit(one: Opened, version: Long): Unit = {
    val rows = one.rows
    one.store.commit()
    val attempt = one.store.getStateStoreCheckpointInfo().stateStoreCkptId
    model.made(attempt, rows)
    committed = Some((version + 1, attempt))
    if (threads.oneIn(2)) {
      one.readsOn = true
      read(one)
      one.readsOn = false
    }
    step("has committed")
  }

  /** As PySpark calls stores: its task waits, unless it is killed, and then ends before the call does. */
  private def onOtherThread(call: => Unit): Unit = {
    val outcome = new AtomicReference[Option[Throwable]]
    model.atWork.incrementAndGet()
    threads.start(s"Python's thread of task $number") {
      TaskContext.setTaskContext(context)
      val failure =
        try { call; None }
        catch { case error: Throwable => Some(error) }
        finally { model.atWork.decrementAndGet(); () }
      outcome.set(failure)
      if (context.isCompleted()) failure.foreach(checkReason)
    }
    threads.awaitTrue("waits for Python")(outcome.get != null)
    outcome.get.foreach(failure => throw failure)
  }

  /** What a task may fail for. */
  private def checkReason(error: Throwable): Unit = {
    val reasons = Iterator.iterate(error)(_.getCause).takeWhile(_ != null).toSeq
    val isNamed = reasons.exists {
      case violation: Violation => throw violation
      case _: InterruptedException | _: TaskKilledException => context.isInterrupted()
      case _: StateStoreInvalidStamp | _: StateStoreOperationOutOfOrder =>
        // Python's thread may call when the task has ended.
        context.isCompleted() || (throw new Violation(Rules.KeepsTransaction, s"task $number", error))
      case ours: LaminaError if ours.kind == LaminaError.StoreState =>
        throw new Violation(Rules.NoWaitForEver, s"task $number", error)
      case ours: LaminaError =>
        Fault.is(ours) || ours.kind == LaminaError.MemoryCap || ours.kind == LaminaError.StoreStamp ||
        (ours.kind == LaminaError.StoreClosed && provider.isClosed)
      case other => Fault.is(other)
    }
    if (!isNamed) throw new Violation(Rules.NoTransactionIsLost, s"task $number", error)
  }
}

private[lamina] object ModelTask {
  private val ids = new AtomicLong(1000000L)
  private val values = new AtomicLong

  def newValue(): Int = values.incrementAndGet().toInt
}
