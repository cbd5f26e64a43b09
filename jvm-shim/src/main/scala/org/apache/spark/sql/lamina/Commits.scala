package org.apache.spark.sql.lamina

import scala.annotation.tailrec

import org.json4s.{JNull, JObject, JValue}
import org.json4s.JsonDSL._

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.{
  StateStoreCheckpointInfo,
  StateStoreConf,
  StateStoreId,
  StateStoreMetrics
}
import org.apache.spark.sql.lamina.table.{ChangeSummary, EntrySink, KeyHash}
import org.apache.spark.sql.lamina.wire.CommitAnswer

/**
 * What a writing open is based on.
 *
 * @param base attempt that the version opened is of
 * @param begun the attempt that the engine allotted, or none where it begins with the commit, if there is one
 * @param initial column families at the start of the transaction, the default one included
 */
final case class Draft(
    base: Option[String],
    begun: Option[Begun],
    loadEmpty: Boolean,
    forceSnapshot: Boolean,
    initial: ColumnFamilies
)

/** What a commit gave: what the driver is told about it, and the store's metrics at that moment. */
final case class Outcome(info: StateStoreCheckpointInfo, metrics: StateStoreMetrics)

/**
 * Commits of one store: the change set goes to the engine once, and the table moves on when it is accepted, under the id
 * that the engine gives it then. Its being durable is waited for where the durability level says.
 */
final class Commits(
    id: StateStoreId,
    storeConf: StateStoreConf,
    engine: EngineStore,
    counters: Counters,
    measure: LiveTable => StateStoreMetrics,
    isBehindBarrier: () => Boolean
) {
  import Commits.Sent

  /** Under format v2 Spark names each version by attempt, so a version may be the attempt of an older one. */
  private val namesAttempts = storeConf.enableStateStoreCheckpointIds

  /** The lock of the table is held before and after the change set is sent and accepted, and not meanwhile. */
  def commit(store: LaminaStateStore): Unit = {
    val live = store.live
    live.synchronized {
      store.requireCommit()
      live.settle()
      counters.add(Metrics.SpilledBytes, live.table.spilledBytes)
      store.open.transition(OpenAction.Send)
    }
    val sent =
      try send(store)
      catch {
        case error: Throwable =>
          live.synchronized(live.endSend(store.open, OpenAction.Fail))
          throw error
      }
    live.synchronized {
      try
        sent.next match {
          case None => live.keep(store.version + 1)
          case Some(next) => live.advance(next, sent.bytes)
        }
      catch {
        case error: Throwable =>
          live.endSend(store.open, OpenAction.Fail)
          throw error
      }
      engine.isDue = live.isDue
      live.pending = sent.pending.orNull
      store.outcome = Some(outcome(store, sent.attempt))
      store.pending = sent.pending
      live.endSend(store.open, OpenAction.Commit)
      store.attach()
      store.endWithoutTask()
    }
    sent.pending.foreach { commit =>
      if (isBehindBarrier() && commit.isInLog) commit.settleWhenDone()
      else TaskDurability.defer(TaskContext.get(), commit)
    }
  }

  private def outcome(store: LaminaStateStore, attempt: String): Outcome = {
    val info = StateStoreCheckpointInfo(
      id.partitionId,
      store.version + 1,
      if (namesAttempts) Some(attempt) else None,
      if (namesAttempts) store.sent else None
    )
    Outcome(info, measure(store.live))
  }

  private def send(store: LaminaStateStore): Sent = {
    val draft = store.draft
    val nothing = changesNothing(store.live, draft)
    val late = engine.beginsWithCommit(draft.base, draft.loadEmpty, draft.forceSnapshot)
    engine.rests = nothing
    val begun = draft.begun.orElse {
      if (late && !(nothing && engine.wantsToHear)) None
      else Some(engine.begin(store.version, draft.base, draft.loadEmpty, draft.forceSnapshot, have = true))
    }
    val base = draft.base.orElse(begun.flatMap(_.baseAttempt))
    // The first commit always writes: Spark's state reader wants a directory for each partition.
    base.filter(_ => nothing && !begun.exists(_.isWanted)) match {
      case Some(kept) =>
        counters.add(Metrics.SkippedCommits, 1)
        Sent(kept, None, None, 0L)
      case None => send(store, draft, begun, base)
    }
  }

  /** Whether the next version is the one before, under format v2, where it is called as that. */
  private def changesNothing(live: LiveTable, draft: Draft): Boolean =
    namesAttempts && !draft.loadEmpty && !draft.forceSnapshot && live.working == draft.initial && live.table.isUnchanged

  @tailrec
  private def send(
      store: LaminaStateStore,
      draft: Draft,
      begun: Option[Begun],
      base: Option[String]
  ): Sent = {
    val live = store.live
    val whole = draft.loadEmpty || draft.forceSnapshot || begun.exists(_.snapshot)
    // Not known before all was sent, where a batch does not hold the change set.
    var summary = Option.empty[ChangeSummary]
    val increment = "increment" -> ((sink: EntrySink) => { summary = Some(live.table.changeSet(sink)) })
    val snapshot = "snapshot" -> ((sink: EntrySink) => { live.table.snapshot(sink); () })
    val rewrite = begun.flatMap(_.rewrite).map { case (part, parts) =>
      "rewrite" -> ((sink: EntrySink) => live.table.rewrite(part, parts, sink))
    }
    val sections = Seq(increment) ++ (if (whole) Some(snapshot) else rewrite)
    if (sections.size > 1) live.synchronized(live.table.settleScan())
    val opened = begun.fold(engine.handle(readOnly = false))(_.handle)
    val header = () =>
      describe(store, draft, begun, base, whole, summary) ~
        ("alone" -> waits(opened)) ~ ("patient" -> isBehindBarrier())
    engine.commit(opened, header, sections) match {
      case Left(wanted) => send(store, draft, Some(wanted), base)
      case Right(answer) => accepted(store, draft, opened, summary, answer)
    }
  }

  private def accepted(
      store: LaminaStateStore,
      draft: Draft,
      opened: EngineHandle,
      summary: Option[ChangeSummary],
      answer: CommitAnswer
  ): Sent = {
    val live = store.live
    val next = Position(store.version + 1, answer.attempt, live.working)
    val bytes = summary.fold(0L)(changed => changed.bytes + Commits.RowBytes * changed.rows)
    if (draft.forceSnapshot) counters.add(Metrics.ForcedSnapshots, 1)
    summary.foreach { changed =>
      counters.add(Metrics.ChangedRows, changed.rows)
      counters.add(Metrics.ChangedBytes, changed.bytes)
    }
    if (waits(opened) || answer.isDone) {
      // The transaction stays open until the file is durable: a failure leaves it to be aborted.
      onDurable(answer.await(), answer.tookNanos / 1000000L)
      Sent(answer.attempt, Some(next), None, bytes)
    } else Sent(answer.attempt, Some(next), Some(new DurableCommit(live, answer, onDurable)), bytes)
  }

  /** Whether nothing else goes on until the commit is durable. */
  private def waits(opened: EngineHandle): Boolean =
    TaskContext.get() == null || opened.settings.get(Commits.DurabilityKey).contains("store")

  private def describe(
      store: LaminaStateStore,
      draft: Draft,
      begun: Option[Begun],
      base: Option[String],
      whole: Boolean,
      summary: Option[ChangeSummary]
  ): JObject = {
    val live = store.live
    val families = live.working.all
    val counts = families.map { family =>
      val count = ("rows" -> live.table.rows(family.id)) ~ ("bytes" -> live.table.keyValueBytes(family.id))
      family.id.toString -> (count: JValue)
    }
    val rows = summary.map(changed => "increment" -> changed.rows).toMap ++
      (if (whole) Some("snapshot" -> live.table.rows) else None)
    val rewrite = begun.flatMap(_.rewrite).map { case (part, parts) =>
      ("part" -> part) ~ ("parts" -> parts) ~ ("hash" -> KeyHash.Name)
    }
    val basedOn: JValue =
      if (draft.loadEmpty) JNull
      else base.fold[JValue](JNull)(attempt => ("version" -> store.version) ~ ("attempt" -> attempt))
    val attempt: (String, JValue) = begun match {
      case Some(begun) => "attempt" -> begun.attempt
      case None => "begin" -> engine.beginning(store.version, base.get)
    }
    JObject(attempt) ~ ("version" -> (store.version + 1)) ~ ("base" -> basedOn) ~
      ("rows" -> rows) ~
      ("rewrite" -> rewrite) ~
      ("counts" -> JObject(counts.toList)) ~
      ("column_families" -> live.working.toJson(id.storeName)) ~
      ("next_column_family" -> live.working.next) ~
      ("task_attempt" -> Option(TaskContext.get()).fold(0L)(_.taskAttemptId()))
  }

  private def onDurable(answer: JValue, waitedMs: Long): Unit = {
    EngineStore.long(answer \ "bytes").foreach(counters.add(Metrics.WrittenBytes, _))
    counters.add(Metrics.DurableMs, waitedMs)
    EngineStore.long(answer \ "copied_bytes").foreach(EngineStore.copiedBytes = _)
    EngineStore.long(answer \ "local_bytes").foreach(EngineStore.localBytes = _)
    for {
      count <- EngineStore.long(answer \ "increments")
      bytes <- EngineStore.long(answer \ "increment_bytes")
    } engine.increments = (count, bytes)
    InPlace.fromJson(answer \ "in_place").foreach(engine.offer)
    val maintained = answer \ "maintained"
    for {
      stored <- EngineStore.long(maintained \ "stored_bytes")
      newest <- EngineStore.long(maintained \ "newest_bytes")
    } engine.space = (stored, newest)
    EngineStore.long(maintained \ "segments").foreach(counters.add(Metrics.Segments, _))
    EngineStore.long(maintained \ "merge_ms").foreach(counters.add(Metrics.MergeMs, _))
    EngineStore.long(maintained \ "failed_merges").foreach(counters.add(Metrics.FailedMerges, _))
    EngineStore.long(maintained \ "deleted_files").foreach(counters.add(Metrics.CollectedFiles, _))
    EngineStore.long(maintained \ "deleted_bytes").foreach(counters.add(Metrics.CollectedBytes, _))
    for ((name, metric) <- Metrics.Merged; amount <- EngineStore.long(maintained \ name)) counters.add(metric, amount)
    for ((name, metric) <- Metrics.Logs; amount <- EngineStore.long(answer \ "log" \ name)) counters.add(metric, amount)
  }
}

object Commits {

  /**
   * A change set that was accepted.
   *
   * @param attempt what the next version is called
   * @param next what the table holds then; none where nothing changed
   * @param pending the commit, where it is not durable yet
   * @param bytes that its rows take, about
   */
  private final case class Sent(attempt: String, next: Option[Position], pending: Option[DurableCommit], bytes: Long)

  /** What a row takes besides its key and value, in pages and indexes. */
  private val RowBytes = 48L

  private val DurabilityKey = StoreSettings.Prefix + "durability.level"
}
