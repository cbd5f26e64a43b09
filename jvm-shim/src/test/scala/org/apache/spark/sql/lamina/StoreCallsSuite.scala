package org.apache.spark.sql.lamina

import java.nio.file.Files

import org.json4s.{JObject, JValue}
import org.json4s.JsonDSL._

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection
import org.apache.spark.sql.execution.streaming.state.{
  ReadStateStore,
  RecordType,
  StateStore,
  StateStoreCustomMetric,
  StateStoreId
}
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.types.{BinaryType, StructType}

/** Calls that Spark's own suites do not make, and what they leave in the files. */
class StoreCallsSuite extends ProviderFixture {

  private def multiGet(store: ReadStateStore, keys: Long*): Seq[Option[Int]] =
    store.multiGet(keys.map(key).toArray, family).toList.map(row => Option(row).map(_.getInt(0)))

  private def deleteRange(store: StateStore, from: Long, to: Long): Unit =
    store.deleteRange(key(from), key(to), family)

  private type Change = (RecordType.Value, Long, Option[Int])

  /** The increment of a version. */
  private def increment(id: StateStoreId, version: Long, attempt: Option[String], ordered: Boolean): Seq[Change] = {
    val provider = provide(id, ordered, streaming = false)
    try
      provider.getStateStoreChangeDataReader(version, version, None, attempt).map { case (record, at, value, _) =>
        (record, at.getLong(0), Option(value).map(_.getInt(0)))
      }.toList.sortBy(_._2)
    finally provider.close()
  }

  private def diff(before: Map[Long, Int], after: Map[Long, Int]): Seq[Change] = {
    val puts = after.filter { case (at, value) => !before.get(at).contains(value) }
      .map { case (at, value) => (RecordType.PUT_RECORD, at, Option(value)) }
    val deletes = before.keySet.diff(after.keySet).map(at => (RecordType.DELETE_RECORD, at, Option.empty[Int]))
    (puts.toSeq ++ deletes).sortBy(_._2)
  }

  test("the rows of a join are partitioned by what is before their index, whether a store has the name or a family") {
    def rule(store: String, family: String): JValue =
      TestFamilies.one.byName("default").copy(name = family).toJson(store) \ "partition_key"
    val (whole, before): (JValue, JValue) = (("kind" -> "key"): JObject, ("kind" -> "drop-last") ~ ("columns" -> 1))
    assert(rule("left-keyWithIndexToValue", "default") == before)
    assert(rule("default", "right-keyWithIndexToValue") == before)
    assert(Seq("left-keyToNumValues", "default").forall(rule(_, "default") == whole))
  }

  test("multiGet gives for each key, in their order, its value or null: of the version, of the transaction, reloaded") {
    val id = newId()
    val provider = provide(id)
    val first = commit(provider, 0, None)(put(_, (1L to 5L).map(at => at -> at.toInt): _*))
    val reader = provider.getReadStore(1, first)
    val second = commit(provider, 1, first) { store =>
      put(store, 2L -> 20, 6L -> 6)
      store.remove(key(3), family)
      val asked = Seq(6L, 3L, 2L, 9L, 1L, 1L)
      assert(multiGet(store, asked: _*) == Seq(Some(6), None, Some(20), None, Some(1), Some(1)))
      assert(multiGet(reader, asked: _*) == Seq(None, Some(3), Some(2), None, Some(1), Some(1)))
      assert(multiGet(store) == Nil)
      intercept[IllegalStateException](store.multiGet(Array(key(1), null), family))
    }
    provider.close()
    val reloaded = provide(id, streaming = false)
    assert(multiGet(reloaded.getReadStore(2, second), 2, 3, 6) == Seq(Some(20), None, Some(6)))
    reloaded.close()
  }

  test("a store on a file system of Hadoop without getScheme is committed and restored") {
    val id = StateStoreId(s"${HeldFileSystem.Scheme}://${newCheckpoint().resolve("state")}", 0, 0)
    val provider = provide(id)
    val first = commit(provider, 0, None)(put(_, 1L -> 1))
    provider.close()
    assert(restored(id, 1, first) == Map(1L -> 1))
  }

  test("deleteRange removes from its first key up to, not including, its second, and leaves what is changed after it") {
    val id = newId()
    val provider = provide(id, ordered = true)
    val before = (-6L to 20L by 2).map(at => at -> at.toInt).toMap
    val first = commit(provider, 0, None)(put(_, before.toSeq: _*))
    val after = before -- Seq(2L, 4L, 10L) ++ Seq(5L -> 50, 8L -> 80, 30L -> 30)
    val second = commit(provider, 1, first) { store =>
      put(store, 4L -> 400, 7L -> 7, 30L -> 30)
      store.remove(key(6), family)
      deleteRange(store, 2, 12)
      assert(contents(store) == before -- Seq(2L, 4L, 6L, 8L, 10L) + (30L -> 30))
      assert(multiGet(store, 0, 2, 4, 7, 10, 12) == Seq(Some(0), None, None, None, None, Some(12)))
      // what was there before, something else, and what is new
      put(store, 6L -> 6, 8L -> 80, 5L -> 50)
      Seq((12L, 12L), (9L, 3L), (13L, 14L), (100L, 200L)).foreach { case (from, to) => deleteRange(store, from, to) }
      assert(contents(store) == after)
    }
    // each key once, no tombstone of what never was, nothing of what came back as it was
    assert(increment(id, 2, second, ordered = true) == diff(before, after))
    provider.close()
    assert(restored(id, 2, second, ordered = true) == after)
  }

  test("deleteRange of restored rows, across negative keys, is in the next increment; an abort undoes it") {
    val id = newId()
    val provider = provide(id, ordered = true)
    val before = (-300L to 300L).map(at => at -> at.toInt).toMap
    val first = commit(provider, 0, None)(put(_, before.toSeq: _*))
    provider.close()
    val next = provide(id, ordered = true)
    val aborted = next.getStore(1, first)
    deleteRange(aborted, -1000, 1000)
    assert(contents(aborted).isEmpty)
    aborted.abort()
    val after = before.filterNot { case (at, _) => at >= -257 && at < 256 }
    val second = commit(next, 1, first) { store =>
      assert(contents(store) == before)
      deleteRange(store, -257, 256)
      assert(contents(store) == after)
    }
    assert(increment(id, 2, second, ordered = true) == diff(before, after))
    next.close()
    assert(restored(id, 2, second, ordered = true) == after)
  }

  test("deleteRange is refused where keys have no order") {
    val provider = provide(newId())
    val store = provider.getStore(0)
    val refused = intercept[IllegalStateException](deleteRange(store, 1, 2))
    assert(refused.getMessage.contains("RangeKeyScanStateEncoderSpec"))
    store.abort()
    provider.close()
  }

  private val opens = Seq[(String, Boolean, (LaminaStateStoreProvider, Option[String]) => StateStore)](
    ("a provider that Spark loaded", true, (provider, base) => provider.getStore(1, base, true, false)),
    ("any other provider", false, (provider, base) => provider.getStore(1, base, true, false)),
    (
      "a reader that is upgraded",
      true,
      (provider, base) =>
        provider.upgradeReadStoreToWriteStore(provider.getReadStore(1, base), 1, base, forceSnapshotOnCommit = true)
    )
  )

  for ((who, streaming, open) <- opens; changed <- Seq(true, false)) {
    val what = if (changed) "changes" else "no changes"
    test(s"forceSnapshotOnCommit, by $who, with $what: a snapshot that restores without what it was built from") {
      val id = newId()
      val provider = provide(id, streaming = streaming)
      val before = (1L to 50L).map(at => at -> at.toInt).toMap
      val first = commit(provider, 0, None)(put(_, before.toSeq: _*))
      val store = open(provider, first)
      val after = if (changed) before - 3L ++ Seq(4L -> 40, 60L -> 60) else before
      if (changed) {
        put(store, 4L -> 40, 60L -> 60)
        store.remove(key(3), family)
      }
      store.commit()
      assert(store.metrics.customMetrics(Metrics.ForcedSnapshots) == 1)
      provider.close()
      val files = commitFiles(id)
      assert(files.keySet == Set(1L, 2L))
      Files.delete(files(1))
      assert(restored(id, 2, attempt(store)) == after)
      val next = provide(id)
      val third = commit(next, 2, attempt(store))(put(_, 70L -> 70))
      next.close()
      assert(restored(id, 3, third) == after + (70L -> 70))
    }
  }

  test("metrics tell the increments of a version, and the bytes of those that a restore reads") {
    val id = newId()

    def committed(provider: LaminaStateStoreProvider, version: Long, base: Option[String]): StateStore = {
      val store = provider.getStore(version, base)
      put(store, version -> 1)
      store.commit()
      store
    }

    def metric(store: StateStore, metric: StateStoreCustomMetric): Long = store.metrics.customMetrics(metric)

    val provider = provide(id)
    val stores = (0L until 3L).foldLeft(Seq.empty[StateStore]) { (before, version) =>
      before :+ committed(provider, version, before.lastOption.flatMap(attempt))
    }
    assert(stores.map(metric(_, Metrics.Increments)) == Seq(1, 2, 3))
    assert(stores.map(metric(_, Metrics.ReplayedBytes)) == Seq(0, 0, 0))
    val bytes = stores.map(metric(_, Metrics.IncrementBytes))
    assert(0 < bytes.head && bytes == bytes.sorted.distinct)
    provider.close()
    val next = provide(id, streaming = false)
    val store = committed(next, 3, attempt(stores.last))
    assert(metric(store, Metrics.ReplayedBytes) == bytes.last)
    assert(metric(store, Metrics.Increments) == 4)
    next.close()
  }

  test("a list of more bytes than an array or a length can hold is refused as too large, and changes nothing") {
    val schema = new StructType().add("value", BinaryType)
    val large = UnsafeProjection.create(schema)(InternalRow(new Array[Byte](1 << 20))).copy()
    val provider = init(new StreamingProvider, newId(), lists = true, valueSchema = schema)
    val store = provider.getStore(0, None)
    store.putList(key(1), Array(large), family)
    // 2 and 4 GiB, of one row
    for (count <- Seq(128, 2100, 4097)) withClue(s"$count rows: ") {
      val rows = Array.fill(count)(large)
      for (
        call <- Seq[() => Unit](() => store.putList(key(1), rows, family), () => store.mergeList(key(1), rows, family))
      )
        assert(intercept[LaminaError](call()).kind == LaminaError.RowTooLarge)
    }
    assert(store.valuesIterator(key(1), family).map(_.getSizeInBytes).toSeq == Seq(large.getSizeInBytes))
    store.abort()
    provider.close()
  }

  test("a change set of more than a batch's 16 MiB is whole when it is restored") {
    val id = newId()
    val provider = provide(id)
    val rows = (0L until 700000L).map(at => at -> at.toInt)
    val base = commit(provider, 0, None)(put(_, rows: _*))
    val changed = commit(provider, 1, base) { store =>
      rows.foreach { case (at, _) => if (at % 3 == 0) store.remove(key(at), family) else put(store, at -> -1) }
    }
    provider.close()
    assert(restored(id, 1, base) == rows.toMap)
    assert(restored(id, 2, changed) == rows.collect { case (at, _) if at % 3 != 0 => at -> -1 }.toMap)
  }
}
