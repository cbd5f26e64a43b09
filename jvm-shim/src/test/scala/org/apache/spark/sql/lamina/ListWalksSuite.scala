package org.apache.spark.sql.lamina

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{ReadStateStore, StateStore}

/** Walks over the values of keys: on tables that have all of their rows in memory, and on those above tables of RocksDB. */
class ListWalksSuite extends ProviderFixture {
  private val keys = 1L to 20L
  private val count = 200

  private def valuesOf(at: Long): Seq[Int] = (0 until count).map(at.toInt * 1000 + _)

  private def provideOn(
      backend: String,
      encoding: String = "unsaferow",
      rowChecksum: Boolean = false
  ): HeldProvider = init(
    new HeldProvider,
    newId(),
    lists = true,
    encoding = encoding,
    rowChecksum = rowChecksum,
    settings = Map("backend" -> backend)
  )

  private def putLists(store: StateStore): Unit =
    keys.foreach(at => store.putList(key(at), valuesOf(at).map(value).toArray, family))

  /** Commits the lists as version 1; where there may be tables below, they are of this version. */
  private def commitLists(provider: HeldProvider, layered: Boolean): Option[String] = {
    val base = commit(provider, 0, None)(putLists)
    if (layered) {
      provider.held.materialize(1, base)
      // they come below with a transaction
      provider.getStore(1, base).abort()
    }
    base
  }

  /** Forgets the rows of a table that are the same below it; whether there were any. */
  private def forget(store: ReadStateStore): Boolean = {
    val live = store.asInstanceOf[LaminaStateStore].live
    live.synchronized(Iterator.continually(live.forgetSome()).takeWhile(identity).nonEmpty)
  }

  private def numbers(rows: Iterable[UnsafeRow]): Seq[Int] = rows.map(_.getInt(0)).toSeq

  private type Kind = (String, String, Boolean)

  for (
    kind @ (backend, encoding, rowChecksum) <- Seq[Kind](
      ("heap", "unsaferow", false),
      ("rocksdb", "unsaferow", false),
      ("rocksdb", "unsaferow", true),
      ("rocksdb", "avro", false)
    )
  ) {
    test(s"values of keys that are asked for in turns are right while rows are forgotten, and stay, $kind") {
      val provider = provideOn(backend, encoding, rowChecksum)
      val layered = backend == "rocksdb"
      val base = commitLists(provider, layered)
      val task = TaskContext.empty()
      asTask(task) {
        val reader = provider.getReadStore(1, base)
        // of every second key they begin before its row is forgotten
        def begin(from: Long) = (from to keys.last by 2L).map(at => at -> reader.valuesIterator(key(at), family))
        val before = begin(1)
        assert(forget(reader) == layered)
        val walks = before ++ begin(2)
        val seen = mutable.Map.empty[Long, Vector[UnsafeRow]].withDefaultValue(Vector.empty)
        val whole = reader.iteratorWithMultiValues(family)
        val ofAll = mutable.Map.empty[Long, Vector[UnsafeRow]].withDefaultValue(Vector.empty)
        for (step <- 0 until count) {
          for ((at, values) <- walks) {
            seen(at) :+= values.next()
            val pair = whole.next()
            ofAll(pair.key.getLong(0)) :+= pair.value
          }
          assert(reader.keyExists(key(1L + step % keys.size), family))
        }
        whole.foreach(pair => ofAll(pair.key.getLong(0)) :+= pair.value)
        for (at <- keys) {
          assert(numbers(seen(at)) == valuesOf(at))
          assert(numbers(ofAll(at)) == valuesOf(at))
        }
        assert(walks.forall(!_._2.hasNext))
      }
      task.markTaskCompleted(None)
      provider.close()
    }

    test(s"a walk over values gives those that were there when it came to their key, and not what is appended, $kind") {
      val provider = provideOn(backend, encoding, rowChecksum)
      val base = commitLists(provider, layered = backend == "rocksdb")
      val task = TaskContext.empty()
      asTask(task) {
        val store = provider.getStore(1, base)
        val (values, kept) = (store.valuesIterator(key(7), family), mutable.Buffer.empty[UnsafeRow])
        while (values.hasNext) {
          kept += values.next()
          store.merge(key(7), value(-1), family)
        }
        assert(numbers(kept) == valuesOf(7))
        assert(numbers(store.valuesIterator(key(7), family).toSeq) == valuesOf(7) ++ Seq.fill(count)(-1))
        store.putList(key(7), valuesOf(7).map(value).toArray, family)
        val ofAll = mutable.Map.empty[Long, Vector[UnsafeRow]].withDefaultValue(Vector.empty)
        store.iteratorWithMultiValues(family).foreach { pair =>
          val at = pair.key.getLong(0)
          ofAll(at) :+= pair.value
          store.merge(key(at), value(-1), family)
        }
        for (at <- keys) assert(numbers(ofAll(at)) == valuesOf(at))
        assert(numbers(kept) == valuesOf(7), "rows stay as they were")
        store.abort()
      }
      task.markTaskCompleted(None)
      provider.close()
    }
  }

  for (backend <- Seq("heap", "rocksdb"))
    test(s"what has begun to read a list has not made an object of each of its values, $backend") {
      val provider = provideOn(backend)
      val length = 2000
      val base = commit(provider, 0, None)(_.putList(key(1), Array.tabulate(length)(value), family))
      val task = TaskContext.empty()
      asTask(task) {
        val reader = provider.getReadStore(1, base)
        // an element has its length, and a row of one field
        val bytes = length * 20
        val ofKey = AllocatedBytes.of(if (reader.valuesIterator(key(1), family).next().getInt(0) != 0) fail())
        val ofAll = AllocatedBytes.of {
          val walk = reader.iteratorWithMultiValues(family)
          if (walk.next().value.getInt(0) != 0) fail()
          walk.close()
        }
        info(s"$ofKey bytes a key, $ofAll a walk, of a list of $bytes")
        assert(math.max(ofKey, ofAll) < bytes * 5 / 4)
      }
      task.markTaskCompleted(None)
      provider.close()
    }
}
