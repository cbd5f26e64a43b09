package org.apache.spark.sql.lamina

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state._

/** Walks of a store's rows, which are fetched some at a time. */
class RowIteratorSuite extends ProviderFixture {
  private val rows = (1L to 1000L).map(at => at -> at.toInt)

  private def keys(walk: Iterator[UnsafeRowPair]): Seq[Long] = walk.map(_.key.getLong(0)).toList

  /** Runs `body` with a transaction on rows 1 to 1000, by every kind of walk over all of them. */
  private def onEveryWalk(body: (StateStore, StateStoreIterator[UnsafeRowPair]) => Unit): Unit =
    for (ordered <- Seq(false, true)) onWalk(ordered)(body)

  private def onWalk(ordered: Boolean)(body: (StateStore, StateStoreIterator[UnsafeRowPair]) => Unit): Unit =
    withClue(s"ordered $ordered: ") {
      val provider = provide(newId(), ordered)
      val base = commit(provider, 0, None)(put(_, rows: _*))
      val store = provider.getStore(1, base)
      val walk = if (ordered) store.rangeScan(None, None, family) else store.iterator(family)
      body(store, walk)
      if (!store.hasCommitted) store.abort()
      provider.close()
    }

  test("a walk gives each row once, whatever is removed, put and put again while it runs") {
    onEveryWalk { (store, walk) =>
      val seen = mutable.Buffer.empty[(Long, Int)]
      walk.foreach { pair =>
        val at = pair.key.getLong(0)
        seen += at -> pair.value.getInt(0)
        store.remove(key(at), family)
        if (at % 3 == 0) put(store, at -> 0)
      }
      assert(seen.sorted == rows)
      assert(contents(store) == rows.collect { case (at, _) if at % 3 == 0 => at -> 0 }.toMap)
    }
  }

  test("a walk of a range gives no key that has come since it began, and such as were removed and put again") {
    onWalk(ordered = true) { (store, walk) =>
      put(store, (2001L to 2500L).map(at => at -> 1): _*)
      val later = store.rangeScan(None, None, family)
      var at = 3000L
      val seen = walk.map { pair =>
        val known = pair.key.getLong(0)
        // before it and behind it, whatever the order
        put(store, at -> 0, -at -> 0)
        at += 1
        store.remove(key(1000L), family)
        put(store, 1000L -> 1000)
        known
      }.toList
      assert(seen.sorted == rows.map(_._1))
      assert(keys(later).sorted == rows.map(_._1) ++ (2001L to 2500L))
      assert(keys(store.iterator(family)).size == 1500 + 2 * rows.size)
    }
  }

  test("rows that a walk has given stay as they were, and so do those that it has fetched") {
    onEveryWalk { (store, walk) =>
      put(store, rows.map { case (at, _) => at -> -1 }: _*)
      val fresh = store.iterator(family)
      val first = (1 to 5).map(_ => fresh.next()).map(pair => (pair.key, pair.value))
      put(store, rows.map { case (at, _) => at -> -2 }: _*)
      assert(first.map(_._2.getInt(0)).toSet == Set(-1))
      val others = fresh.map(_.value.getInt(0)).toList
      assert(others.size == rows.size - first.size && others.forall(Set(-1, -2)))
      fresh.close()
      assert(keys(walk).sorted == rows.map(_._1))
    }
  }

  test("a closed walk is at its end, however many rows it has fetched") {
    onEveryWalk { (_, walk) =>
      (1 to 100).foreach(_ => walk.next())
      walk.close()
      assert(!walk.hasNext)
      intercept[NoSuchElementException](walk.next())
    }
  }

  test("a walk fails at once where its open has ended or has lost its transaction") {
    onEveryWalk { (store, walk) =>
      (1 to 100).foreach(_ => walk.next())
      store.abort()
      intercept[StateStoreOperationOutOfOrder](walk.hasNext)
    }
    onEveryWalk { (store, walk) =>
      (1 to 100).foreach(_ => walk.next())
      put(store, 1L -> 5)
      store.commit()
      intercept[StateStoreOperationOutOfOrder](walk.hasNext)
    }
    val provider = provide(newId())
    val base = commit(provider, 0, None)(put(_, rows: _*))
    val first = provider.getStore(1, base)
    val walk = first.iterator(family)
    (1 to 100).foreach(_ => walk.next())
    provider.getStore(1, base).abort()
    intercept[StateStoreOperationOutOfOrder](walk.hasNext)
    provider.close()
  }

  test("a walk fails where the provider was closed, whose rows may be gone") {
    val provider = provide(newId(), streaming = false)
    val base = commit(provider, 0, None)(put(_, rows: _*))
    val walk = provider.getReadStore(1, base).iterator(family)
    (1 to 100).foreach(_ => walk.next())
    provider.close()
    intercept[StateStoreInvalidStamp](walk.hasNext)
  }

  test(
    "a walk of a reader that is upgraded to another table ends, and does not go on in the table that somebody else has"
  ) {
    val id = newId()
    val one = provideHeld(id)
    val base = commit(one, 0, None)(put(_, 1L -> 1))
    val (task, rival) = (TaskContext.empty(), TaskContext.empty())
    val reader = asTask(task)(one.getReadStore(1, base).asInstanceOf[LaminaStateStore])
    val walk = asTask(task)(reader.iterator(family))
    val two = provideHeld(id)
    val other = asTask(rival)(two.getStore(1, base).asInstanceOf[LaminaStateStore])
    assert(other.live eq reader.live)
    asTask(rival) { put(other, 1L -> 999, 2L -> 999); other.commit() }
    rival.markTaskCompleted(None)
    // two versions on: there is no step back to the base
    commit(two, 2, attempt(other))(put(_, 3L -> 999))
    asTask(task) {
      one.upgradeReadStoreToWriteStore(reader, 1, base)
      assert(reader.live ne other.live)
      intercept[StateStoreInvalidStamp](walk.hasNext)
      assert(contents(reader) == Map(1L -> 1))
    }
    task.markTaskCompleted(None)
    Seq(one, two).foreach(_.close())
  }

  test("a walk goes on after a commit in a task, over what was committed") {
    val provider = provide(newId())
    val base = commit(provider, 0, None)(put(_, rows: _*))
    val task = TaskContext.empty()
    asTask(task) {
      val store = provider.getStore(1, base)
      val walk = store.iterator(family)
      val before = (1 to 100).map(_ => walk.next().key.getLong(0))
      put(store, 5000L -> 1)
      store.commit()
      val seen = before ++ keys(walk)
      assert(seen.filter(_ <= 1000).sorted == rows.map(_._1))
      assert(contents(store) == (rows.toMap + (5000L -> 1)))
    }
    task.markTaskCompleted(None)
    provider.close()
  }

  test("a scan with one row allocates no more in a store of a thousand rows than in one of one row") {
    val allocated = Seq(1, 1000).map { count =>
      val provider = provide(newId(), ordered = true)
      val base = commit(provider, 0, None)(put(_, rows.take(count): _*))
      val store = provider.getReadStore(1, base)
      val (from, until) = (Some(key(1L)), Some(key(2L)))
      val bytes = AllocatedBytes.of(if (store.rangeScan(from, until, family).size != 1) fail("not one row"))
      store.release()
      provider.close()
      bytes
    }
    assert(allocated(1) < allocated(0) + 100, s"$allocated bytes a scan")
  }
}
