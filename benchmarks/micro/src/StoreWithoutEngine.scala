// Opens a store as a task does and ends its transactions without an engine: what a commit would send is built and
// dropped, and counts as durable. In this package because what a commit does to a store is private to it.
package org.apache.spark.sql.lamina

import org.apache.hadoop.conf.Configuration

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.lamina.wire.ChangeMessages
import org.apache.spark.sql.types.StructType

import lamina.benchmarks.micro.CommitClock

final class StoreWithoutEngine(keySchema: StructType, valueSchema: StructType, settings: Map[String, String] = Map.empty) {
  private val messages = new ChangeMessages
  private val provider = new LaminaStateStoreProvider
  private var version = 0L
  private var attempt = Option.empty[String]

  {
    val conf = new SQLConf
    conf.setConfString("spark.sql.streaming.stateStore.checkpointFormatVersion", "2")
    settings.foreach { case (key, value) => conf.setConfString(key, value) }
    provider.init(
      StateStoreId("file:/nowhere", 0L, 0), keySchema, valueSchema, NoPrefixKeyStateEncoderSpec(keySchema),
      useColumnFamilies = false, new StateStoreConf(conf), new Configuration(false), useMultipleValuesPerKey = false,
      None)
  }

  /** Opens the newest version for writing. Nothing is asked of an engine, for the table is there. */
  def open(): LaminaStateStore =
    provider.getStore(version, attempt, forceSnapshotOnCommit = false, loadEmpty = false) match {
      case store: LaminaStateStore => store
      case other => throw new IllegalStateException(s"the provider opened $other")
    }

  /** As a commit whose file is durable at once, and all of the reclaim that follows it. */
  def commit(store: LaminaStateStore, clock: CommitClock): Long = {
    val live = store.live
    // the lock is kept until the reclaim is done: else the thread that reclaims would do it, and its time is not ours
    live.synchronized {
      clock.commit(messages.build(live.table)) {
        version += 1
        attempt = Some(s"L1.$version.1.o.-.${"0" * 32}")
        live.advance(Position(version, attempt.get, live.working))
        store.open.transition(OpenAction.Send)
        store.open.transition(OpenAction.Commit)
        live.leave(store.open)
      } {
        while (live.table.maintain(4)) ()
      }
    }
  }

  def rows(store: LaminaStateStore): Long = store.live.table.rows
}
