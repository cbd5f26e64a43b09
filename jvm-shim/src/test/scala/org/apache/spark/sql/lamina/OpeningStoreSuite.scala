package org.apache.spark.sql.lamina

import java.nio.file.Files
import java.util.concurrent.{CyclicBarrier, TimeUnit}
import java.util.concurrent.atomic.AtomicInteger

import scala.util.Try

import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.SpanSugar._

import org.apache.spark.{TaskContext, TaskContextImpl}
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId}

/** Stores that a task has while they are still restored. */
class OpeningStoreSuite extends ProviderFixture {

  /** A provider that has nothing in memory, of a store with one version. */
  private def restarted(id: StateStoreId): (HeldProvider, Option[String]) = {
    val first = provideHeld(id, handOverMs = 0L)
    val base = commit(first, 0, None)(put(_, 1L -> 1, 2L -> 2))
    first.close()
    val provider = provideHeld(id, handOverMs = 0L)
    provider.ahead = true
    (provider, base)
  }

  test("the stores of one task are restored at the same time, although they are opened one after the other") {
    val stores = Seq.fill(4)(restarted(newId()))
    val together = new CyclicBarrier(stores.size)
    stores.foreach { case (provider, _) => provider.held.onLoad = () => together.await(30, TimeUnit.SECONDS) }
    val task = TaskContext.empty()
    val committed = asTask(task) {
      val opened = stores.map { case (provider, base) => provider.getStore(1, base) }
      opened.foreach(store => assert(contents(store) == Map(1L -> 1, 2L -> 2)))
      opened.foreach(put(_, 3L -> 3))
      assert(opened.forall(_.commit() == 2))
      task.markTaskCompleted(None)
      opened.map(attempt)
    }
    stores.zip(committed).foreach { case ((provider, _), attempt) =>
      assert(restored(provider.stateStoreId, 2, attempt) == Map(1L -> 1, 2L -> 2, 3L -> 3))
      provider.close()
    }
  }

  test("the next batch has its store at once") {
    val (provider, base) = restarted(newId())
    val task = TaskContext.empty()
    val second = asTask(task) {
      val store = provider.getStore(1, base)
      put(store, 3L -> 3)
      store.commit()
      task.markTaskCompleted(None)
      attempt(store)
    }
    val next = TaskContext.empty()
    asTask(next) {
      assert(provider.getStore(2, second).isInstanceOf[LaminaStateStore])
      next.markTaskCompleted(None)
    }
    provider.close()
  }

  test("the task's own thread reads rows where they lie, any other one gets copies") {
    val (provider, base) = restarted(newId())
    val task = TaskContext.empty()
    val store = asTask(task)(provider.getStore(1, base))
    assert(asTask(task)(store.get(key(1), family)).getBaseObject == null)
    var elsewhere: AnyRef = null
    val other = new Thread(() => elsewhere = store.get(key(1), family).getBaseObject)
    other.start()
    other.join()
    assert(elsewhere != null)
    task.markTaskCompleted(None)
    provider.close()
  }

  test("a store that cannot be opened says so to whoever uses it, by the error of the open, and can be aborted") {
    val id = newId()
    val (provider, base) = restarted(id)
    commitFiles(id).values.foreach(Files.delete)
    val (task, other) = (TaskContext.empty(), TaskContext.empty())
    val store = asTask(task)(provider.getStore(1, base))
    val error = asTask(task)(intercept[Exception](store.get(key(1), family)))
    val again = asTask(task)(intercept[Exception](store.commit()))
    assert(!store.hasCommitted)
    store.abort()
    task.markTaskCompleted(None)
    provider.ahead = false
    val expected = asTask(other)(intercept[Exception](provider.getStore(1, base)))
    assert(error.getClass == expected.getClass && error.getMessage == expected.getMessage)
    assert(again.getMessage == error.getMessage)
    other.markTaskCompleted(None)
    provider.close()
  }

  /** Does something to its end, however often it is interrupted. */
  private def whole(body: => Unit): Unit =
    try body
    catch { case _: InterruptedException => whole(body) }

  /** Opens a store, does `end` while it is restored, and asks that the next task has it while the first one goes on. */
  private def givenUp(isInterruptible: Boolean)(end: (TaskContextImpl, StateStore) => Unit): Unit = {
    val (provider, base) = restarted(newId())
    val gate = new Gate
    provider.held.onLoad = if (isInterruptible) gate else () => whole(gate())
    val (task, next) = (TestTasks.context(1), TestTasks.context(2))
    val store = asTask(task)(provider.getStore(1, base))
    assert(gate.isReached())
    assert(!store.hasCommitted)
    end(task, store)
    gate.letGo()
    provider.held.onLoad = () => ()
    asTask(next) {
      val opened = provider.getStore(1, base)
      assert(contents(opened) == Map(1L -> 1, 2L -> 2))
      put(opened, 3L -> 3)
      opened.commit()
      next.markTaskCompleted(None)
    }
    if (!task.isCompleted()) task.markTaskCompleted(None)
    provider.close()
  }

  for (isInterruptible <- Seq(true, false)) {
    val how = if (isInterruptible) "stops" else "cannot be stopped"
    test(s"what a task that ends has not waited for is given up, where its open $how") {
      givenUp(isInterruptible)((task, _) => task.markTaskCompleted(None))
    }
    test(s"what is aborted while it is opened is given up although its task goes on, where its open $how") {
      givenUp(isInterruptible)((_, store) => store.abort())
    }
  }

  test("two tasks that open the same stores side by side get them in the order of the first") {
    val stores = Seq.fill(2)(restarted(newId()))
    val gate = new Gate
    stores.head._1.held.onBegin = gate
    def openAll(): Seq[StateStore] = stores.map { case (provider, base) => provider.getStore(1, base) }
    val (task, rival) = (TestTasks.context(1), TestTasks.context(2))
    val first = asTask(task)(stores.head match { case (provider, base) => provider.getStore(1, base) })
    assert(gate.isReached())
    var outcome: Try[Seq[Map[Long, Int]]] = null
    val beside = new Thread(() => outcome = Try(asTask(rival)(openAll().map(contents))))
    beside.start()
    eventually(timeout(60.seconds))(assert(beside.getStackTrace.exists(_.getMethodName == "awaitEnd")))
    asTask(task) {
      val second = stores(1) match { case (provider, base) => provider.getStore(1, base) }
      gate.letGo()
      Seq(first, second).foreach { store =>
        put(store, 3L -> 3)
        store.commit()
      }
      task.markTaskCompleted(None)
    }
    beside.join(60000L)
    assert(!beside.isAlive && outcome.get == Seq.fill(2)(Map(1L -> 1, 2L -> 2)))
    rival.markTaskCompleted(None)
    stores.foreach(_._1.close())
  }

  test("nobody passes a task that waits, also where the open before it has failed") {
    val stores = Seq.fill(2)(restarted(newId()))
    val Seq((first, firstBase), (second, secondBase)) = stores: @unchecked
    val (fails, waits) = (new Gate, new Gate)
    val begun = new AtomicInteger
    first.held.onBegin = () =>
      begun.incrementAndGet() match {
        case 1 =>
          fails()
          throw new IllegalStateException("the first open fails")
        case 2 => waits()
        case _ => ()
      }
    def openAll(id: Long): (Thread, () => Try[Seq[Map[Long, Int]]]) = {
      var outcome: Try[Seq[Map[Long, Int]]] = null
      val task = TestTasks.context(id)
      val thread = new Thread(() => {
        outcome = Try(asTask(task) {
          val opened = Seq(first.getStore(1, firstBase), second.getStore(1, secondBase))
          opened.map(contents)
        })
        task.markTaskCompleted(None)
      })
      thread.start()
      (thread, () => { thread.join(60000L); outcome })
    }
    def isIn(thread: Thread, method: String): Unit =
      eventually(timeout(60.seconds))(assert(thread.getStackTrace.exists(_.getMethodName == method)))
    val task = TestTasks.context(1)
    asTask(task)(first.getStore(1, firstBase))
    assert(fails.isReached())
    val (waiting, waited) = openAll(2)
    isIn(waiting, "awaitEnd")
    fails.letGo()
    assert(waits.isReached())
    val (later, ended) = openAll(3)
    isIn(later, "lockInterruptibly")
    assert(second.held.begins == 0, "it has passed the one that waits")
    waits.letGo()
    val all = Seq.fill(2)(Map(1L -> 1, 2L -> 2))
    assert(waited().get == all && ended().get == all)
    task.markTaskCompleted(None)
    stores.foreach(_._1.close())
  }

  test("who waits for a store is interrupted with its task") {
    val (provider, base) = restarted(newId())
    val gate = new Gate
    provider.held.onLoad = gate
    val task = TaskContext.empty()
    var outcome: Try[Any] = null
    val thread = new Thread(() => {
      outcome = Try(asTask(task)(provider.getStore(1, base).get(key(1), family)))
    })
    thread.start()
    assert(gate.isReached())
    eventually(timeout(60.seconds)) {
      assert(thread.getStackTrace.exists(_.getClassName.contains("FutureTask")))
    }
    thread.interrupt()
    thread.join(60000L)
    assert(!thread.isAlive && outcome.isFailure)
    gate.letGo()
    task.markTaskCompleted(None)
    provider.close()
  }
}
