package org.apache.spark.sql.lamina

import java.util.concurrent.atomic.AtomicReference

import scala.collection.mutable
import scala.util.Try

import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.SpanSugar._

import org.apache.spark.{SparkConf, SparkContext, TaskContext}
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** How long rows stay readable that a store has handed out, and to whom it hands them out where they lie. */
class RowLifetimeSuite extends ProviderFixture {
  private val rows = (1L to 2000L).map(at => at -> at.toInt)

  private def isInPlace(row: UnsafeRow): Boolean = row.getBaseObject == null

  private def onOtherThread[A](body: => A): A = {
    var result: Try[A] = null
    val thread = new Thread(() => result = Try(body))
    thread.start()
    thread.join()
    result.get
  }

  private def open(provider: LaminaStateStoreProvider, version: Long, base: Option[String]): LaminaStateStore =
    provider.getStore(version, base).asInstanceOf[LaminaStateStore]

  /** Runs `body` as a task of Spark, on the thread of an executor. */
  private def inRealTask(body: TaskContext => Unit): Unit = {
    val conf = new SparkConf(loadDefaults = false).setMaster("local[1]").setAppName("rows")
      .set("spark.ui.enabled", "false")
    val context = new SparkContext(conf)
    RowLifetimeSuite.body.set(body)
    try context.parallelize(Seq(1), 1).foreach(_ => RowLifetimeSuite.body.get()(TaskContext.get()))
    finally context.stop()
  }

  test("a task's own thread reads rows where they lie, and every other thread gets copies") {
    val provider = provide(newId())
    val base = commit(provider, 0, None)(put(_, rows: _*))
    val task = TaskContext.empty()
    asTask(task) {
      val store = open(provider, 1, base)
      val walk = store.iterator(family)
      assert(isInPlace(store.get(key(1), family)) && isInPlace(walk.next().value))
      onOtherThread {
        assert(!isInPlace(store.get(key(1), family)))
        assert(!isInPlace(store.multiGet(Array(key(2)), family).next()))
        val pair = walk.next()
        assert(!isInPlace(pair.key) && !isInPlace(pair.value))
      }
      // with the task's context set, as Spark's threads that feed Python have it
      onOtherThread {
        TaskContext.setTaskContext(task)
        assert(!isInPlace(walk.next().value))
      }
      assert(isInPlace(walk.next().value))
    }
    task.markTaskCompleted(None)
    provider.close()
  }

  test("an open without a task hands out copies, which stay as they were whatever becomes of the table") {
    val provider = provide(newId(), streaming = false)
    val base = commit(provider, 0, None)(put(_, rows: _*))
    val reader = provider.getReadStore(1, base)
    val row = reader.get(key(7), family)
    val walked = reader.iterator(family).map(pair => (pair.key, pair.value)).toList
    assert(!isInPlace(row) && !walked.exists { case (key, value) => isInPlace(key) || isInPlace(value) })
    provider.close()
    assert(row.getInt(0) == 7)
    assert(walked.map { case (key, value) => key.getLong(0) -> value.getInt(0) }.sorted == rows)
  }

  test("values of a key are refused once their open has given its rows up") {
    val provider = provideLists(newId())
    val store = open(provider, 0, None)
    store.putList(key(1), Array.tabulate(3)(value), family)
    val values = store.valuesIterator(key(1), family)
    val first = values.next()
    assert(!isInPlace(first) && first.getInt(0) == 0)
    store.abort()
    intercept[StateStoreInvalidStamp](values.next())
    assert(first.getInt(0) == 0)
    provider.close()
  }

  test("values of a key are in place for the task's thread and copies for others, on one iterator") {
    val provider = provideLists(newId())
    val task = TaskContext.empty()
    val base = commit(provider, 0, None)(_.putList(key(1), Array.tabulate(4)(value), family))
    val values = asTask(task) {
      val store = open(provider, 1, base)
      val values = store.valuesIterator(key(1), family)
      assert(isInPlace(values.next()))
      assert(!isInPlace(onOtherThread(values.next())))
      values
    }
    task.markTaskCompleted(None)
    intercept[StateStoreInvalidStamp](values.next())
    provider.close()
  }

  test("a list that is read after each append takes no more than its bytes and their copy") {
    val provider = provideLists(newId())
    val task = TaskContext.empty()
    asTask(task) {
      val store = open(provider, 0, None)
      val table = store.live.table
      var worst = 0.0
      for (number <- 0 until 40000) {
        store.merge(key(1), value(number), family)
        assert(store.keyExists(key(1), family) && store.get(key(1), family).getInt(0) == 0)
        val values = store.valuesIterator(key(1), family)
        assert(values.next().getInt(0) == 0)
        if (number % 1000 == 0) assert(values.map(_.getInt(0)).toSeq == (1 to number))
        worst = math.max(worst, (table.memory.total - (256 << 10)).toDouble / table.keyValueBytes(0))
      }
      info(f"at most $worst%.2f times")
      assert(worst <= 2.15)
      store.abort()
    }
    task.markTaskCompleted(None)
    provider.close()
  }

  test("values of a key are those that it had when they were asked for, whatever is done to its list meanwhile") {
    val provider = provideLists(newId())
    val base = commit(provider, 0, None)(_.putList(key(1), Array.tabulate(100)(value), family))
    val task = TaskContext.empty()
    asTask(task) {
      val store = open(provider, 1, base)
      val begun = mutable.ArrayBuffer.empty[(Int, Iterator[Int])]
      def begin(length: Int): Unit = {
        val values = store.valuesIterator(key(1), family).map(_.getInt(0))
        assert(values.next() == 0)
        begun += length -> values
      }
      begin(100)
      for (number <- 100 until 5000) {
        store.merge(key(1), value(number), family)
        if (number % 500 == 0) begin(number + 1)
      }
      def goOn(times: Int): Unit = begun.foreach { case (_, values) => values.take(times).foreach(_ => ()) }
      goOn(10)
      store.putList(key(1), Array(value(-1)), family)
      for (_ <- 1 to 5000) store.merge(key(1), value(-2), family)
      goOn(10)
      store.remove(key(1), family)
      for (_ <- 1 to 5000) store.merge(key(1), value(-3), family)
      store.commit()
      begun.foreach { case (length, values) => assert(values.toSeq == (21 until length)) }
    }
    task.markTaskCompleted(None)
    provider.close()
  }

  test("values of a key that a reader has open are refused when its upgrade has gone on with another table") {
    val provider = provideLists(newId())
    def commitList(version: Long, base: Option[String], values: Int*): Option[String] =
      commit(provider, version, base)(_.putList(key(1), values.map(value).toArray, family))
    val base = commitList(0, None, 1, 2, 3)
    val second = commitList(1, base, 4, 5, 6)
    val (task, other) = (TaskContext.empty(), TaskContext.empty())
    // so that version 1 is read from a table of its own
    asTask(other)(provider.getReadStore(2, second))
    asTask(task) {
      val reader = provider.getReadStore(1, base).asInstanceOf[LaminaStateStore]
      val read = reader.live
      val values = reader.valuesIterator(key(1), family)
      val walk = reader.iteratorWithMultiValues(family)
      val first = values.next()
      assert(first.getInt(0) == 1 && walk.next().value.getInt(0) == 1)
      val store = provider.upgradeReadStoreToWriteStore(reader, 1, base)
      assert(reader.live ne read)
      intercept[StateStoreInvalidStamp](values.next())
      intercept[StateStoreInvalidStamp](walk.next())
      assert(first.getInt(0) == 1, "what was handed out stays")
      assert(store.valuesIterator(key(1), family).map(_.getInt(0)).toSeq == Seq(1, 2, 3))
      store.abort()
    }
    Seq(task, other).foreach(_.markTaskCompleted(None))
    provider.close()
  }

  test("values in Avro are decoded under the table's lock, whose opens share the decoder") {
    val provider = provideLists(newId(), "avro")
    val task = TaskContext.empty()
    val reader = Thread.currentThread()
    @volatile var (isHeld, isRead, hasWaited) = (false, false, false)
    asTask(task) {
      val store = open(provider, 0, None)
      store.putList(key(1), Array.tabulate(3)(value), family)
      val values = store.valuesIterator(key(1), family)
      val holder = new Thread(() =>
        store.live.synchronized {
          isHeld = true
          while (!isRead && !hasWaited) hasWaited = reader.getState == Thread.State.BLOCKED
        }
      )
      holder.start()
      while (!isHeld) Thread.onSpinWait()
      assert(values.map(_.getInt(0)).toList == Seq(0, 1, 2))
      isRead = true
      holder.join()
    }
    assert(hasWaited, "it was decoded while somebody else had the lock")
    task.markTaskCompleted(None)
    provider.close()
  }

  private type Around = (=> Unit) => Unit

  private def named(body: => Unit): Unit = {
    Thread.currentThread().setName("a function of the user at work")
    body
  }

  private def deep(body: => Unit): Unit = {
    def descend(frames: Int): Int = if (frames == 0) { body; 0 }
    else 1 + descend(frames - 1)
    descend(3000)
    ()
  }

  for (
    (how, around) <- Seq[(String, Around)](
      "after all of its listeners" -> (body => body),
      "although the user's function has renamed it" -> named,
      "however deep its stack is" -> deep
    )
  )
    test(s"rows that a task has read stay until its thread has left it, $how") {
      val provider = provide(newId(), handOverMs = 60000L)
      var table: LiveTable = null
      var (inListener, freed) = (0, true)
      inRealTask { task =>
        var row: UnsafeRow = null
        // Listeners run in reverse: this one after those of the store.
        task.addTaskCompletionListener[Unit] { _ =>
          around {
            provider.close()
            val presser = new Thread(() => while (TableRegistry.ofExecutor.evictOne()) ())
            presser.start()
            presser.join()
            freed = !table.table.hasReadPages
          }
          if (!freed) inListener = row.getInt(0)
        }
        val store = open(provider, 0, None)
        table = store.live
        put(store, rows: _*)
        row = store.get(key(9), family)
        assert(isInPlace(row))
        store.commit()
      }
      assert(!freed && inListener == 9)
      eventually(timeout(60.seconds))(assert(!table.table.hasReadPages))
      assert(table.closed)
    }

  test(
    "an action at a task's end that fails, even for want of memory, stops neither the next one nor those of later tasks"
  ) {
    @volatile var (next, later) = (false, false)
    def whenLeft(task: TaskContext)(action: => Unit): Unit =
      TaskThreads.whenLeft(Thread.currentThread(), task.taskAttemptId())(() => action)
    inRealTask { task =>
      whenLeft(task)(throw new OutOfMemoryError("a test's"))
      whenLeft(task) { next = true }
    }
    eventually(timeout(60.seconds))(assert(next))
    inRealTask(task => whenLeft(task) { later = true })
    eventually(timeout(60.seconds))(assert(later))
  }

  test("rows that are given up are used again when their readers have ended, and no batch has to begin for that") {
    val provider = provide(newId())
    val base = commit(provider, 0, None)(put(_, rows: _*))
    val task = TaskContext.empty()
    val live = asTask(task)(provider.getReadStore(1, base).asInstanceOf[LaminaStateStore].live)
    val second = commit(provider, 1, base)(put(_, rows.map { case (at, _) => at -> -1 }: _*))
    commit(provider, 2, second)(put(_, rows.map { case (at, _) => at -> -2 }: _*))
    def dead: Long = live.synchronized(live.table.memory.deadBytes)
    // on this thread, since the reclaimer may not have come to it yet
    while (live.synchronized(live.reclaim(1))) ()
    assert(dead == 0, "a reader is there")
    task.markTaskCompleted(None)
    eventually(timeout(60.seconds))(assert(dead > 0))
    provider.close()
  }
}

private object RowLifetimeSuite {
  val body = new AtomicReference[TaskContext => Unit]()
}
