package org.apache.spark.sql.lamina

import scala.util.Try

import org.scalatest.concurrent.Eventually.{eventually, timeout}
import org.scalatest.time.SpanSugar._

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.StateStore

/** Two actions on one batch that run side by side: the tasks of both open the same version of a store for writing. */
class SideBySideSuite extends ProviderFixture {
  private type Open = (LaminaStateStoreProvider, Option[String]) => StateStore

  private val ways = Seq[(String, Open)](
    "at once" -> ((provider, base) => provider.getStore(1, base)),
    "as a reader first" -> ((provider, base) => {
      val reader = provider.getReadStore(1, base)
      provider.upgradeReadStoreToWriteStore(reader, 1, base)
    })
  )

  for ((how, open) <- ways)
    test(s"a task that reads on what it has committed keeps its rows, and the other one, opening $how, gets the base") {
      val provider = provide(newId())
      val base = commit(provider, 0, None)(put(_, 1L -> 1, 2L -> 2, 3L -> 3))
      val (first, second) = (TaskContext.empty(), TaskContext.empty())
      val rows = asTask(first) {
        val store = provider.getStore(1, base)
        put(store, 1L -> 10, 4L -> 4)
        store.commit()
        store.iterator(family)
      }
      var seen = Try(Map.empty[Long, Int])
      val other = new Thread(() =>
        seen = Try(asTask(second) {
          val store = open(provider, base)
          val found = contents(store)
          store.abort()
          found
        })
      )
      other.start()
      eventually(timeout(60.seconds)) {
        assert(!other.isAlive || other.getStackTrace.exists(_.getMethodName == "awaitReaders"))
      }
      val read = rows.map(pair => pair.key.getLong(0) -> pair.value.getInt(0)).toMap
      assert(read == Map(1L -> 10, 2L -> 2, 3L -> 3, 4L -> 4))
      first.markTaskCompleted(None)
      other.join()
      assert(seen.get == Map(1L -> 1, 2L -> 2, 3L -> 3))
      second.markTaskCompleted(None)
      provider.close()
    }

  test("a task that has committed no change and reads on keeps its rows, and another one of the same base waits") {
    val provider = provide(newId())
    val base = commit(provider, 0, None)(put(_, 1L -> 1, 2L -> 2))
    val (first, second) = (TaskContext.empty(), TaskContext.empty())
    val rows = asTask(first) {
      val store = provider.getStore(1, base)
      store.commit()
      store.iterator(family)
    }
    var committed = Try(0L)
    val other = new Thread(() =>
      committed = Try(asTask(second) {
        val store = provider.getStore(1, base)
        put(store, 1L -> 10)
        store.commit()
      })
    )
    other.start()
    eventually(timeout(60.seconds)) {
      assert(!other.isAlive || other.getStackTrace.exists(_.getMethodName == "awaitReaders"))
    }
    assert(rows.map(pair => pair.key.getLong(0) -> pair.value.getInt(0)).toMap == Map(1L -> 1, 2L -> 2))
    first.markTaskCompleted(None)
    other.join()
    assert(committed.get == 2)
    second.markTaskCompleted(None)
    provider.close()
  }

  test("a task that reads nothing after its commit holds nobody up, however long it goes on") {
    val provider = provide(newId())
    val base = commit(provider, 0, None)(put(_, 1L -> 1))
    val (first, second) = (TaskContext.empty(), TaskContext.empty())
    asTask(first) {
      val store = provider.getStore(1, base)
      put(store, 1L -> 10)
      store.commit()
      assert(contents(store) == Map(1L -> 10))
    }
    var seen = Map.empty[Long, Int]
    val other = new Thread(() =>
      asTask(second) {
        val store = provider.getStore(1, base)
        seen = contents(store)
        store.abort()
      }
    )
    other.start()
    // a second, where waiting for the first task's end would take a minute
    other.join(30000L)
    assert(seen == Map(1L -> 1))
    Seq(first, second).foreach(_.markTaskCompleted(None))
    provider.close()
  }
}
