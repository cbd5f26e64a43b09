package org.apache.spark.sql.lamina

import java.nio.file.Files

/** When an attempt is begun by a call of its own, and when by its commit. */
class LateBeginSuite extends ProviderFixture {

  /** Commits versions up to `last`, each of which adds its number as a row; their attempts. */
  private def versions(provider: LaminaStateStoreProvider, last: Int): Seq[Option[String]] =
    (1 to last).scanLeft(Option.empty[String]) { (base, version) =>
      commit(provider, version - 1L, base)(put(_, version.toLong -> version))
    }.tail

  private def rows(last: Int): Map[Long, Int] = (1 to last).map(version => version.toLong -> version).toMap

  test("where the rows are here, a batch is one request") {
    val id = newId()
    val provider = provideHeld(id, handOverMs = 0L)
    val attempts = versions(provider, 5)
    assert(provider.held.begins == 1)
    assert(attempts.distinct.size == 5)
    assert(restored(id, 5, attempts.last) == rows(5))
    provider.close()
  }

  test("a batch that changes nothing asks for nothing, and for one thing after each maintenance") {
    val id = newId()
    val provider = provideHeld(id, handOverMs = 0L)
    val base = versions(provider, 2).last
    (3 to 6).foreach(version => assert(commit(provider, version - 1L, base)(_ => ()) == base))
    assert(provider.held.begins == 1)
    provider.held.maintain()
    (7 to 9).foreach(version => assert(commit(provider, version - 1L, base)(_ => ()) == base))
    assert(provider.held.begins == 2)
    provider.close()
  }

  test("far away an attempt begins before its batch, but for a store that changed nothing in the last one") {
    val id = newId()
    val provider = provideHeld(id, handOverMs = 0L)
    provider.held.isFar = true
    val base = versions(provider, 3).last
    assert(provider.held.begins == 3)
    (4 to 9).foreach(version => assert(commit(provider, version - 1L, base)(_ => ()) == base))
    assert(provider.held.begins == 4)
    val changed = commit(provider, 9, base)(put(_, 4L -> 4))
    assert(provider.held.begins == 4)
    val last = commit(provider, 10, changed)(put(_, 5L -> 5))
    assert(provider.held.begins == 5)
    assert(restored(id, 11, last) == rows(5))
    provider.close()
  }

  test("a commit of which the whole version is wanted is sent again, whole") {
    val id = newId()
    val settings = Map("compaction.mode" -> "full", "compaction.fullInterval" -> "3")
    val provider = provideHeld(id, handOverMs = 0L, settings)
    val attempts = versions(provider, 9)
    assert(provider.held.begins == 1)
    // no older file is needed for a version that is whole
    val files = commitFiles(id)
    val sizes = (1L to 9L).map(version => Files.size(files(version)))
    assert(sizes.sliding(2).exists(pair => pair(1) > pair(0) + 100), sizes)
    assert(restored(id, 9, attempts.last) == rows(9))
    provider.close()
  }

  test("a commit whose base was lost brings the whole version") {
    val id = newId()
    val provider = provideHeld(id, handOverMs = 0L)
    val base = versions(provider, 3).last
    (1L to 3L).foreach(version => Files.delete(commitFiles(id)(version)))
    val next = commit(provider, 3, base)(put(_, 4L -> 4))
    assert(provider.held.begins == 1)
    assert(restored(id, 4, next) == rows(4))
    provider.close()
  }

  test("a base that was lost while nothing changes is written anew after the next maintenance") {
    val id = newId()
    val provider = provideHeld(id, handOverMs = 0L)
    val base = versions(provider, 3).last
    (1L to 3L).foreach(version => Files.delete(commitFiles(id)(version)))
    assert(commit(provider, 3, base)(_ => ()) == base)
    provider.held.maintain()
    val next = commit(provider, 4, base)(_ => ())
    assert(next != base)
    assert(restored(id, 5, next) == rows(3))
    provider.close()
  }

  test("where each commit is to bring a part, each is begun first") {
    val provider = provideHeld(newId(), handOverMs = 0L, Map("compaction.mode" -> "rolling"))
    versions(provider, 4)
    assert(provider.held.begins == 4)
    provider.close()
  }

  test("a commit on rows that are here begins in an engine that has just started") {
    val id = newId()
    val provider = provideHeld(id, handOverMs = 0L)
    val base = versions(provider, 3).last
    val store = provider.getStore(3, base)
    put(store, 4L -> 4)
    wire.Engine.shutdown()
    store.commit()
    assert(restored(id, 4, attempt(store)) == rows(4))
    provider.close()
  }
}
