// The third map that is measured: lamina's state store, as an operator calls it.
package lamina.benchmarks.micro

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.lamina.{LaminaStateStore, StoreWithoutEngine}

/** What the engine does is left out: each commit ends where its messages are built. */
final class StoreSubject extends Subject {
  private val Family = StateStore.DEFAULT_COL_FAMILY_NAME
  private val provider = new StoreWithoutEngine(KeyBlock.KeySchema, KeyBlock.ValueSchema)
  private val clock = new CommitClock
  private var opened: LaminaStateStore = _

  /** The open transaction, as a task has one for all of its rows. */
  private def store: LaminaStateStore = {
    if (opened == null) opened = provider.open()
    opened
  }

  override def get(keys: KeyBlock): Long = {
    val from = store
    var sum = 0L
    var i = 0
    while (i < keys.count) {
      val found = from.get(keys.key(i), Family)
      if (found != null) sum += found.getLong(0)
      i += 1
    }
    sum
  }

  override def put(keys: KeyBlock, value: Array[Byte], stamp: Long): Unit = {
    val to = store
    val row = new UnsafeRow(3)
    row.pointTo(value, KeyBlock.ValueBytes)
    var i = 0
    while (i < keys.count) {
      KeyBlock.writeValue(value, stamp + i)
      to.put(keys.key(i), row, Family)
      i += 1
    }
  }

  override def commit(): Long = {
    val bytes = provider.commit(store, clock)
    opened = null
    bytes
  }

  override def commitParts(): Seq[(String, Long)] = clock.take()

  override def scan(): Long = {
    val pairs = store.iterator(Family)
    var sum = 0L
    while (pairs.hasNext) sum += pairs.next().value.getLong(0)
    pairs.close()
    sum
  }

  override def rows: Long = provider.rows(store)

  override def digest(): Long = {
    val pairs = store.iterator(Family)
    var sum = 0L
    while (pairs.hasNext) {
      val pair = pairs.next()
      sum += Subject.hash(pair.key, pair.value)
    }
    pairs.close()
    sum
  }
}
