package org.apache.spark.sql.lamina

import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreId}

/** What becomes of the table that a provider leaves when the next one opens the store. */
class HandOverSuite extends ProviderFixture {

  /** A provider whose table stays. */
  private def keeping(id: StateStoreId): LaminaStateStoreProvider = provide(id, handOverMs = 60000L)

  private def table(store: StateStore): LiveTable = store.asInstanceOf[LaminaStateStore].live

  private def evictAll(): Unit = while (TableRegistry.ofExecutor.evictOne()) ()

  /** Three versions of a store, and the table of the provider that wrote them and was closed. */
  private def left(id: StateStoreId): (Seq[Option[String]], LiveTable) = {
    val provider = keeping(id)
    val first = commit(provider, 0, None)(put(_, 1L -> 1))
    val second = commit(provider, 1, first)(put(_, 2L -> 2))
    val store = provider.getStore(2, second)
    put(store, 3L -> 3)
    store.commit()
    provider.close()
    (Seq(first, second, attempt(store)), table(store))
  }

  for ((version, how) <- Seq(3 -> "where it ended", 2 -> "one version before"))
    test(s"a store that goes on $how gets the table") {
      val id = newId()
      val (attempts, parked) = left(id)
      val provider = keeping(id)
      val store = provider.getStore(version, attempts(version - 1))
      assert(table(store) eq parked)
      assert(contents(store) == (1 to version).map(at => at.toLong -> at).toMap)
      store.abort()
      provider.close()
      evictAll()
      assert(parked.closed)
    }

  test("a store that goes back further is loaded, and the table is closed: it is not in memory twice") {
    val id = newId()
    val (attempts, parked) = left(id)
    assert(!parked.closed)
    val provider = keeping(id)
    val store = provider.getStore(1, attempts.head)
    assert(contents(store) == Map(1L -> 1))
    assert(parked.closed && !table(store).closed)
    store.abort()
    provider.close()
    evictAll()
  }
}
