package org.apache.spark.sql.lamina

import java.util.Properties
import java.util.concurrent.{CountDownLatch, TimeUnit}
import java.util.concurrent.atomic.AtomicBoolean

import scala.util.Try

import org.json4s.JObject

import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.SpanSugar._

import org.apache.spark.{TaskContext, TaskContextImpl}
import org.apache.spark.executor.TaskMetrics
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreOperationOutOfOrder}
import org.apache.spark.sql.lamina.errors.LaminaError

/** Who has a table where its provider is closed at any moment. */
class OwnershipSuite extends ProviderFixture {

  private def table(store: StateStore): LiveTable = store.asInstanceOf[LaminaStateStore].live

  private def inThread[A](body: => A): (Thread, () => Try[A]) = {
    var result: Try[A] = null
    val thread = new Thread(() => result = Try(body))
    thread.start()
    (thread, () => { thread.join(); result })
  }

  test("a provider that is closed while it opens gives the table up that it took over") {
    val id = newId()
    val first = provideHeld(id)
    var used: LiveTable = null
    val attempt = commit(first, 0, None) { store => put(store, 1L -> 1); used = table(store) }
    first.close()
    val second = provideHeld(id)
    val gate = new Gate
    second.held.onBegin = gate
    val (_, opened) = inThread(second.getStore(1, attempt))
    assert(gate.isReached())
    second.close()
    gate.letGo()
    assert(opened().isFailure)
    assert(!used.closed, "it is parked for the next provider")
    while (TableRegistry.ofExecutor.evictOne()) ()
    assert(used.closed, "a parked table gives way")
  }

  test("a table that moves to another version gives way to nobody, although its query has stopped") {
    val id = newId()
    val provider = provideHeld(id)
    var used: LiveTable = null
    val first = commit(provider, 0, None) { store => put(store, 1L -> 1); used = table(store) }
    val other = provide(id, streaming = false)
    val second = commit(other, 1, first)(put(_, 2L -> 2))
    other.close()
    provider.stopped = true
    val gate = new Gate
    provider.held.onLoad = gate
    val (_, opened) = inThread(provider.getStore(2, second))
    assert(gate.isReached())
    while (TableRegistry.ofExecutor.evictOne()) ()
    assert(!used.closed, "its rows would be given back while they are loaded")
    gate.letGo()
    val store = opened().get
    assert((table(store) eq used) && contents(store) == Map(1L -> 1, 2L -> 2))
    store.abort()
    provider.close()
    while (TableRegistry.ofExecutor.evictOne()) ()
    assert(used.closed)
  }

  test("a provider whose table another one has taken waits for no writer of that one, and aborts none") {
    val id = newId()
    val (first, second) = (provideHeld(id), provideHeld(id))
    val base = commit(first, 0, None)(put(_, 1L -> 1))
    val (task, rival) = (TaskContext.empty(), TaskContext.empty())
    val writer = asTask(rival)(second.getStore(1, base))
    asTask(task) {
      val store = first.getStore(1, base)
      assert((table(store) ne table(writer)) && contents(store) == Map(1L -> 1))
      store.abort()
    }
    asTask(rival) { put(writer, 2L -> 2); writer.commit() }
    Seq(task, rival).foreach(_.markTaskCompleted(None))
    Seq(first, second).foreach(_.close())
  }

  for (
    (what, happens, says) <- Seq[(String, (HeldProvider, LiveTable) => Unit, String)](
      ("the provider is closed", (provider, _) => provider.close(), "was closed"),
      (
        "its table gives way",
        (provider, live) => {
          provider.stopped = true
          eventually(timeout(60.seconds))(assert(TableRegistry.ofExecutor.evictOne() && live.closed))
        },
        "gave way"
      )
    )
  )
    test(s"an open during which $what says so, and does not speak of another run") {
      val provider = provideHeld(newId())
      val base = commit(provider, 0, None)(put(_, 1L -> 1))
      val (first, second) = (TaskContext.empty(), TaskContext.empty())
      val live = asTask(first) {
        val store = provider.getStore(1, base)
        put(store, 2L -> 2)
        store.commit()
        store.iterator(family)
        table(store)
      }
      val (thread, opened) = inThread(asTask(second)(provider.getStore(1, base)))
      eventually(timeout(60.seconds)) {
        assert(thread.getStackTrace.exists(_.getMethodName == "awaitReaders"))
      }
      live.synchronized {
        first.markTaskCompleted(None)
        happens(provider, live)
      }
      assert(opened().failed.get.getCause.getMessage.contains(says))
      second.markTaskCompleted(None)
      provider.close()
    }

  test("a reader that its task has open is upgraded and committed although its provider was closed meanwhile") {
    val id = newId()
    val provider = provideHeld(id)
    val first = commit(provider, 0, None)(put(_, 1L -> 1))
    val task = TaskContext.empty()
    val second = asTask(task) {
      val reader = provider.getReadStore(1, first)
      assert(contents(reader.asInstanceOf[StateStore]) == Map(1L -> 1))
      provider.close()
      val store = provider.upgradeReadStoreToWriteStore(reader, 1, first)
      put(store, 2L -> 2)
      store.commit()
      this.attempt(store)
    }
    task.markTaskCompleted(None)
    assert(restored(id, 2, second) == Map(1L -> 1, 2L -> 2))
  }

  test("a task that ends without a commit has aborted its transaction: its store takes no change, and says so") {
    val provider = provideHeld(newId())
    val base = commit(provider, 0, None)(put(_, 1L -> 1))
    val task = TaskContext.empty()
    val store = asTask(task)(provider.getStore(1, base))
    asTask(task)(put(store, 1L -> 2))
    task.markTaskCompleted(None)
    assert(!table(store).table.inTransaction)
    assert(intercept[StateStoreOperationOutOfOrder](put(store, 1L -> 3)).getMessage.contains("ABORTED"))
    val next = provider.getStore(1, base)
    assert((table(next) eq table(store)) && contents(next) == Map(1L -> 1))
    next.abort()
    provider.close()
  }

  test("a table that a task reads on is not given up for one that another provider has left") {
    val id = newId()
    val first = provideHeld(id)
    val left = commit(first, 0, None)(put(_, 1L -> 1))
    first.close()
    val second = provideHeld(id)
    val (reading, other) = (TaskContext.empty(), TaskContext.empty())
    val (store, rows) = asTask(reading) {
      val store = second.getStore(0)
      put(store, 2L -> 2, 3L -> 3)
      store.commit()
      Option(table(store).pending).foreach(_.settle())
      (store, store.iterator(family))
    }
    assert(asTask(other)(contents(second.getReadStore(1, left))) == Map(1L -> 1))
    assert(asTask(reading)(rows.map(_.value.getInt(0)).toSet) == Set(2, 3))
    assert(!table(store).closed)
    Seq(reading, other).foreach(_.markTaskCompleted(None))
    second.close()
    while (TableRegistry.ofExecutor.evictOne()) ()
  }

  for (end <- Seq("commit", "abort"))
    test(s"without a task $end ends an open in the table that it read first, too") {
      val provider = provideHeld(newId())
      val first = commit(provider, 0, None)(put(_, 1L -> 1))
      val second = commit(provider, 1, first)(put(_, 2L -> 2))
      val writing = inThread(provider.getStore(2, second))._2().get
      val reader = provider.getReadStore(1, first)
      val read = table(reader.asInstanceOf[StateStore])
      assert(read ne table(writing))
      writing.abort()
      val store = provider.upgradeReadStoreToWriteStore(reader, 1, first)
      assert(table(store) ne read)
      assert(!read.closed)
      if (end == "commit") store.commit() else store.abort()
      assert(read.closed)
      provider.close()
    }

  for (fails <- Seq(false, true))
    test(s"a provider of a task alone, which nobody closes, leaves nothing there ${if (fails) "when its open has failed"
      else "when the task ends"}") {
      val id = newId()
      val writer = provide(id)
      val base = commit(writer, 0, None)(put(_, 1L -> 1))
      writer.close()
      val reader = provideHeld(id)
      reader.ofQuery = false
      if (fails) reader.held.onLoad = () => throw new IllegalStateException("the storage is away")
      val task = TaskContext.empty()
      asTask(task) {
        val opened = Try(contents(reader.getReadStore(1, base)))
        assert(if (fails) opened.isFailure else opened.get == Map(1L -> 1))
      }
      task.markTaskCompleted(None)
      assert(!TableRegistry.ofExecutor.hasTables(reader.opens))
      assert(reader.held.closings > 0, "the engine keeps what it knows of a checkpoint that somebody has open")
      // it goes on all the same where Spark opens it once more
      reader.held.onLoad = () => ()
      val again = reader.getReadStore(1, base)
      assert(contents(again) == Map(1L -> 1))
      again.release()
      reader.close()
    }

  test("a provider of a task alone that finds no such version leaves nothing in the engine") {
    val opens = Seq[LaminaStateStoreProvider => Any](
      _.getReadStore(3, None),
      _.replayReadStateFromSnapshot(3, 4, None, None)
    )
    for (open <- opens) {
      val reader = provideHeld(newId())
      reader.ofQuery = false
      asTask(TaskContext.empty())(intercept[Exception](open(reader)))
      assert(reader.held.closings > 0)
    }
  }

  test("a store that was opened for a task that did not wait for it is closed where its provider was") {
    val provider = provideHeld(newId())
    val gate = new Gate
    @volatile var handle: EngineHandle = null
    provider.held.onOpened = opened => { handle = opened; gate() }
    val (thread, opened) = inThread(asTask(TaskContext.empty())(provider.getStore(0, None)))
    assert(gate.isReached())
    thread.interrupt()
    assert(opened().isFailure)
    provider.close()
    gate.letGo()
    eventually(timeout(30.seconds))(assert(Try(handle.call("maintain", JObject())).isFailure))
  }

  test("a store that was opened for a change feed whose reader is gone is closed where its provider was") {
    val provider = provideHeld(newId())
    val (reached, goesOn) = (new CountDownLatch(1), new AtomicBoolean)
    @volatile var handle: EngineHandle = null
    // as a call to the engine does, it goes on also where its thread is interrupted
    provider.held.onOpened = opened => { handle = opened; reached.countDown(); while (!goesOn.get) Thread.onSpinWait() }
    val feed = provider.getStateStoreChangeDataReader(1, 1, None, None)
    assert(reached.await(60, TimeUnit.SECONDS))
    feed.closeIfNeeded()
    provider.close()
    goesOn.set(true)
    eventually(timeout(30.seconds))(assert(Try(handle.call("resolve", JObject())).failed.toOption.exists {
      case error: LaminaError => error.kind == LaminaError.StoreClosed
      case _ => false
    }))
  }

  test("tasks that write a store anew are one run in a stage, and another one in the next") {
    val id = newId()
    def run(stage: Int, partition: Int): String = {
      val provider = provideHeld(id.copy(partitionId = partition))
      provider.ofQuery = false
      val task = new TaskContextImpl(
        stage,
        0,
        partition,
        partition,
        0,
        1,
        null,
        new Properties,
        null,
        new TaskMetrics,
        1,
        Map.empty
      )
      try {
        asTask(task) {
          val store = provider.getStore(0, None, forceSnapshotOnCommit = false, loadEmpty = true)
          put(store, 1L -> partition)
          store.commit()
        }
        task.markTaskCompleted(None)
      } finally provider.close()
      provider.held.runOf
    }
    val runs = for (stage <- 1 to 2; partition <- 0 to 1) yield run(stage, partition)
    assert(runs(0) == runs(1) && runs(2) == runs(3) && runs(0) != runs(2))
  }

  test("nobody is given a handle that is about to be closed") {
    val provider = provideHeld(newId())
    val base = commit(provider, 0, None)(put(_, 1L -> 1))
    val before = provider.held.handle(readOnly = false)
    provider.held.closeLater()
    assert(provider.held.handle(readOnly = false).number != before.number)
    val store = provider.getReadStore(1, base)
    assert(contents(store) == Map(1L -> 1))
    store.release()
    provider.close()
  }

  test("an open that was upgraded to another table keeps its transaction when the one it read first is closed") {
    val id = newId()
    val first = provideHeld(id)
    val start = commit(first, 0, None)(put(_, 7L -> 7))
    val base = commit(first, 1, start)(store => { put(store, 1L -> 1); store.remove(key(7L), family) })
    val task = TaskContext.empty()
    val reader = asTask(task)(first.getReadStore(2, base))
    val read = table(reader.asInstanceOf[StateStore])
    first.close()
    val second = provideHeld(id)
    second.getReadStore(2, base).release()
    commit(second, 1, start)(put(_, 9L -> 9))
    val changed = asTask(task) {
      val store = first.upgradeReadStoreToWriteStore(reader, 2, base)
      assert(table(store) ne read)
      TableRegistry.ofExecutor.drop(read)
      put(store, 2L -> 2)
      assert(contents(store) == Map(1L -> 1, 2L -> 2))
      store.commit()
      attempt(store)
    }
    task.markTaskCompleted(None)
    assert(restored(id, 3, changed) == Map(1L -> 1, 2L -> 2))
    second.close()
    while (TableRegistry.ofExecutor.evictOne()) ()
  }
}
