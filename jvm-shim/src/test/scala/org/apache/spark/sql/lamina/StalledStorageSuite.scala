package org.apache.spark.sql.lamina

import scala.util.Try

import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.SpanSugar._

import org.apache.spark.{TaskContext, TaskContextImpl}
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.lamina.errors.LaminaError

/** A storage that hangs holds up its own store alone, and no task that is killed. */
class StalledStorageSuite extends ProviderFixture {

  /** Something that runs on a thread of its own. */
  private final class Running[A](body: => A) {
    private var result: Try[A] = null
    private val thread = new Thread(() => result = Try(body))
    thread.start()

    def ends: Boolean = { thread.join(60000L); !thread.isAlive }
    def outcome: Try[A] = { thread.join(); result }
    def interrupt(): Unit = thread.interrupt()
    def awaits(method: String): Unit = eventually(timeout(60.seconds)) {
      assert(thread.isAlive && thread.getStackTrace.exists(_.getMethodName == method))
    }
  }

  private def heldId(): StateStoreId =
    StateStoreId(s"${HeldFileSystem.Scheme}://${newCheckpoint().resolve("state")}", 0, 0)

  /** What maintenance threads, the reclaimer and the timer do with a provider and its table. */
  private def maintain(provider: LaminaStateStoreProvider): Unit = {
    val all = new Running({
      provider.doMaintenance()
      TableRegistry.ofExecutor.expire()
      while (TableRegistry.ofExecutor.evictOne()) ()
      provider.supportedCustomMetrics
      provider.close()
    })
    assert(all.ends, "maintenance waits for the store")
    assert(all.outcome.isSuccess)
    val reclaimed, due = new Gate
    Reclaimer.execute(() => reclaimed())
    Timer.after(0L)(due())
    assert(reclaimed.isReached() && due.isReached(), "the reclaimer or the timer waits for the store")
    Seq(reclaimed, due).foreach(_.letGo())
  }

  test("while a version is restored, maintenance ends, and so does closing; the open goes on or is refused") {
    val id = newId()
    val first = provideHeld(id, handOverMs = 0L)
    val base = commit(first, 0, None)(put(_, 1L -> 1))
    first.close()
    val provider = provideHeld(id, handOverMs = 0L)
    val gate = new Gate
    provider.held.onLoad = gate
    val task = TaskContext.empty()
    val opened = new Running(asTask(task)(contents(provider.getStore(1, base))))
    assert(gate.isReached())
    maintain(provider)
    gate.letGo()
    assert(opened.outcome.get == Map(1L -> 1))
    task.markTaskCompleted(None)
  }

  test("while a commit waits to be durable, maintenance ends, and so does closing; the commit is whole") {
    val id = heldId()
    val provider = provideHeld(id)
    val uploads = new Uploads("0")
    HeldFileSystem.uploads = Some(uploads)
    val store = provider.getStore(0)
    put(store, 1L -> 1)
    val committed = new Running(store.commit())
    try {
      assert(uploads.allArrived())
      maintain(provider)
    } finally {
      uploads.release("0")
      HeldFileSystem.uploads = None
    }
    assert(committed.outcome.get == 1L)
    assert(restored(id, 1, attempt(store)) == Map(1L -> 1))
  }

  test(
    "a writer that sends its commit cannot be read, changed, aborted or taken over meanwhile, and readers of its base go on"
  ) {
    val id = heldId()
    val provider = provideHeld(id)
    val base = commit(provider, 0, None)(put(_, 1L -> 1))
    val reader = provider.getReadStore(1, base)
    val uploads = new Uploads("0")
    HeldFileSystem.uploads = Some(uploads)
    val store = provider.getStore(1, base)
    put(store, 1L -> 2)
    val committed = new Running(store.commit())
    try {
      assert(uploads.allArrived())
      assert(reader.get(key(1), family).getInt(0) == 1)
      Seq[() => Any](() => store.get(key(1), family), () => put(store, 1L -> 3), () => store.abort())
        .foreach(call => assert(new Running(call()).outcome.isFailure))
    } finally {
      uploads.release("0")
      HeldFileSystem.uploads = None
    }
    assert(committed.outcome.get == 2L)
    assert(restored(id, 2, attempt(store)) == Map(1L -> 2))
    provider.close()
  }

  test("a reader's own table is closed with its task, although its upgrade sends a commit on another thread") {
    val id = heldId()
    val provider = provideHeld(id, handOverMs = 0L)
    val base = commit(provider, 0, None)(put(_, 1L -> 1))
    val second = commit(provider, 1, base)(put(_, 2L -> 2))
    val (task, other) = (TaskContext.empty(), TaskContext.empty())
    asTask(other)(provider.getReadStore(2, second))
    val store = asTask(task)(provider.getReadStore(1, base).asInstanceOf[LaminaStateStore])
    val read = store.live
    asTask(task) {
      provider.upgradeReadStoreToWriteStore(store, 1, base)
      put(store, 3L -> 3)
    }
    assert(store.live ne read)
    val uploads = new Uploads("0")
    HeldFileSystem.uploads = Some(uploads)
    val committed = new Running(store.commit())
    try {
      assert(uploads.allArrived())
      task.markTaskCompleted(None)
      assert(read.closed && !store.live.closed)
    } finally {
      uploads.release("0")
      HeldFileSystem.uploads = None
    }
    assert(committed.outcome.get == 2L)
    assert(restored(id, 2, attempt(store)) == Map(1L -> 1, 3L -> 3))
    other.markTaskCompleted(None)
    provider.close()
    assert(store.live.closed)
  }

  /** Puts rows as a task that ends while their commit is sent on another thread, and then does `go` to the upload. */
  private def endWhileSending(provider: LaminaStateStoreProvider, base: Option[String], rows: Seq[(Long, Int)])(
      go: Uploads => Unit
  ): (LaminaStateStore, Try[Long]) = {
    val task = TaskContext.empty()
    val store = asTask(task)(provider.getStore(1, base).asInstanceOf[LaminaStateStore])
    asTask(task)(put(store, rows: _*))
    val uploads = new Uploads("0")
    HeldFileSystem.uploads = Some(uploads)
    try {
      val committed = new Running(store.commit())
      assert(uploads.allArrived())
      task.markTaskCompleted(None)
      go(uploads)
      (store, committed.outcome)
    } finally {
      uploads.release("0")
      HeldFileSystem.uploads = None
    }
  }

  test("a task that ends while its commit is sent keeps no rows from being used again once it is whole") {
    val provider = provideHeld(heldId())
    val rows = (1L to 2000L).map(_ -> 1)
    val base = commit(provider, 0, None)(put(_, rows: _*))
    val (store, committed) = endWhileSending(provider, base, rows.map(_._1 -> 2))(_.release("0"))
    assert(committed.get == 2L)
    commit(provider, 2, attempt(store))(put(_, rows.map(_._1 -> 3): _*))
    eventually(timeout(60.seconds))(assert(store.live.synchronized(store.live.table.memory.deadBytes) > 0))
    provider.close()
  }

  test("a task that ends while its commit is sent leaves no transaction behind if that fails") {
    val provider = provideHeld(heldId(), handOverMs = 0L)
    val base = commit(provider, 0, None)(put(_, 1L -> 1))
    val (store, committed) = endWhileSending(provider, base, Seq(1L -> 2))(_.fail("0"))
    assert(committed.isFailure)
    assert(store.live.synchronized(!store.live.table.inTransaction))
    provider.close()
    assert(store.live.closed, "nothing uses it any more")
  }

  test("a task that is killed while the storage hangs stops, in its open and while it waits for another one's") {
    val provider = provideHeld(heldId())
    val base = commit(provider, 0, None)(put(_, 1L -> 1))
    provider.close()
    val next = provideHeld(provider.stateStoreId, handOverMs = 0L)
    while (TableRegistry.ofExecutor.evictOne()) ()
    val gate = new Gate
    HeldFileSystem.onLook = gate
    try {
      val tasks = Seq.fill(2)(TaskContext.empty())
      val first = new Running(asTask(tasks.head)(next.getStore(1, base)))
      assert(gate.isReached())
      val second = new Running(asTask(tasks(1))(next.getStore(1, base)))
      second.awaits("write")
      second.interrupt()
      assert(second.ends, "it waits for the other one's open")
      first.interrupt()
      assert(first.ends, "it waits for the storage")
      assert(first.outcome.isFailure && second.outcome.isFailure)
      tasks.foreach(_.markTaskCompleted(None))
    } finally {
      gate.letGo()
      HeldFileSystem.onLook = () => ()
    }
    val task = TaskContext.empty()
    assert(asTask(task)(contents(next.getStore(1, base))) == Map(1L -> 1))
    task.markTaskCompleted(None)
    next.close()
  }

  test("an engine that is killed between acceptance and upload fails the task, and its next attempt loses nothing") {
    val id = heldId()
    val provider = provideHeld(id)
    val base = commit(provider, 0, None)(put(_, 1L -> 1))
    val task = TaskContext.empty()
    val uploads = new Uploads("0")
    HeldFileSystem.uploads = Some(uploads)
    try {
      val store = asTask(task)(provider.getStore(1, base).asInstanceOf[LaminaStateStore])
      asTask(task) { put(store, 2L -> 2); store.commit() }
      assert(uploads.allArrived())
      val process = ProcessHandle.of(provider.held.handle(readOnly = true).engine.pid).get
      process.destroyForcibly()
      val failure = Try(asTask(task)(task.markTaskCompleted(None))).failed.get
      assert(Iterator.iterate(failure)(_.getCause).takeWhile(_ != null).exists {
        case ours: LaminaError => ours.kind == LaminaError.EngineLost
        case other => other.getMessage.contains(LaminaError.EngineLost)
      })
      assert(store.live.synchronized(store.live.at.content) == base.get)
    } finally {
      uploads.release("0")
      HeldFileSystem.uploads = None
    }
    val again = commit(provider, 1, base)(put(_, 2L -> 3))
    assert(restored(id, 2, again) == Map(1L -> 1, 2L -> 3))
    provider.close()
  }

  test(
    "a task that is killed while its upload hangs ends without it, and the table follows when the outcome is known"
  ) {
    val id = heldId()
    val provider = provideHeld(id)
    val task: TaskContextImpl = TaskContext.empty()
    val uploads = new Uploads("0")
    HeldFileSystem.uploads = Some(uploads)
    try {
      val store = asTask(task)(provider.getStore(0).asInstanceOf[LaminaStateStore])
      asTask(task) { put(store, 1L -> 1); store.commit() }
      assert(uploads.allArrived())
      task.markInterrupted("killed")
      val end = new Running(asTask(task)(task.markTaskCompleted(None)))
      assert(end.ends, "the end of a killed task waits for the storage")
      assert(store.live.synchronized(store.live.pending) != null)
      uploads.fail("0")
      eventually(timeout(60.seconds))(assert(store.live.synchronized(store.live.pending) == null))
      assert(store.live.synchronized(store.live.at) == Position.Start)
    } finally {
      uploads.release("0")
      HeldFileSystem.uploads = None
    }
    provider.close()
  }
}
