package org.apache.spark.sql.lamina

import scala.util.Try

import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.SpanSugar._

import org.apache.spark.{TaskContext, TaskContextImpl}
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId}
import org.apache.spark.sql.lamina.errors.LaminaError

/** Durability level `task`: who waits for the uploads of a task's stores. */
class TaskDurabilitySuite extends ProviderFixture {

  /** A task that has changed two stores, and whose uploads do not end by themselves. */
  private final class Fixture {
    val uploads = new Uploads("left", "right")
    val task: TaskContextImpl = TaskContext.empty()
    private val state = s"${HeldFileSystem.Scheme}://${newCheckpoint().resolve("state")}"
    private val providers = Seq("left", "right").map(name => provide(StateStoreId(state, 0, 0, name)))
    val Seq(left, right) = asTask(task)(providers.map(_.getStore(0).asInstanceOf[LaminaStateStore])): @unchecked
    private var ended: Try[(Boolean, Boolean)] = _
    private val end = new Thread(() => ended = Try { task.markTaskCompleted(None); (isThere(left), isThere(right)) })

    HeldFileSystem.uploads = Some(uploads)

    def isThere(store: StateStore): Boolean = commitFiles(store.id).nonEmpty

    def isSettled(store: LaminaStateStore): Boolean = store.live.synchronized(store.live.pending) == null

    def startToEnd(): Unit = end.start()

    /** Waits until the end of the task has seen the outcome of `left`; whether it still waits for something. */
    def waitsAfterLeft(): Boolean = {
      eventually(timeout(30.seconds))(assert(isSettled(left)))
      val rests = Set(Thread.State.TIMED_WAITING, Thread.State.WAITING, Thread.State.TERMINATED)
      eventually(timeout(30.seconds))(assert(rests(end.getState)))
      end.isAlive
    }

    /** How the task ended, and which stores' files were there then. */
    def outcome(): Try[(Boolean, Boolean)] = {
      end.join()
      ended
    }

    def close(): Unit = {
      HeldFileSystem.uploads = None
      Seq("left", "right").foreach(uploads.release)
      if (!end.isAlive && ended == null) Try(task.markTaskCompleted(None))
      end.join()
      providers.foreach(_.close())
    }
  }

  private def withFixture(body: Fixture => Unit): Unit = {
    val fixture = new Fixture
    try body(fixture)
    finally fixture.close()
  }

  test("the uploads of a task's stores run at the same time, and the task ends when all of them are durable") {
    withFixture { f =>
      asTask(f.task)(Seq(f.left, f.right).foreach { store =>
        put(store, 1L -> 1)
        store.commit()
      })
      assert(f.uploads.allArrived())
      assert(!f.isThere(f.left) && !f.isThere(f.right))
      f.startToEnd()
      f.uploads.release("left")
      assert(f.waitsAfterLeft())
      f.uploads.release("right")
      assert(f.outcome().get == ((true, true)))
    }
  }

  test("a task of which one upload fails ends when the outcome of the others is known, and fails") {
    withFixture { f =>
      asTask(f.task)(Seq(f.left, f.right).foreach { store =>
        put(store, 1L -> 1)
        store.commit()
      })
      f.startToEnd()
      f.uploads.fail("left")
      assert(f.waitsAfterLeft())
      f.uploads.release("right")
      assert(f.outcome().failed.get.getMessage.contains("the upload of left shall fail"))
      assert(f.isSettled(f.right))
      assert(f.left.live.synchronized(f.left.live.at) == Position.Start)
      assert(f.right.live.synchronized(f.right.live.at.version) == 1)
      assert(!f.isThere(f.left) && f.isThere(f.right))
    }
  }

  test("a task that reads on what it has committed is told why that was lost") {
    withFixture { f =>
      asTask(f.task) {
        put(f.left, 1L -> 1, 2L -> 2)
        f.left.commit()
        val rows = f.left.iterator(family)
        assert(rows.next() != null)
        f.uploads.fail("left")
        f.left.live.synchronized(f.left.live.pending).settle()
        for (read <- Seq(() => rows.toSeq, () => f.left.get(key(1L), family))) {
          val error = intercept[LaminaError](read())
          assert(error.kind == LaminaError.StorageFailed)
          assert(error.getMessage.contains("did not become durable") && error.getMessage.contains(f.left.toString))
          assert(error.getMessage.contains("the upload of left shall fail"))
        }
      }
    }
  }
}
