package org.apache.spark.sql.lamina

import java.util.concurrent.TimeUnit
import java.util.concurrent.locks.ReentrantLock

import scala.util.control.NonFatal

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.errors.QueryExecutionErrors
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table.{EntrySink, PagePool}
import org.apache.spark.util.NextIterator

/**
 * Opens versions of one store: finds a table for it, brings that to the version, and lets one writer at a time have it.
 *
 * Opens of one provider run one after the other (`opening`); who waits for his turn can be interrupted. Within an open
 * the table's lock is taken and given back, and it is not held over calls of the engine: a table that is loaded is
 * marked as moving. No lock of Spark's is taken under either.
 */
final class StoreOpener(
    provider: LaminaStateStoreProvider,
    storeConf: StateStoreConf,
    engine: EngineStore,
    pool: PagePool,
    newCodecs: () => Codecs,
    counters: Counters,
    override val stayMs: Long,
    registry: TableRegistry,
    scheduling: Scheduling
) extends TableOwner
    with Logging {
  private val opening = new ReentrantLock
  private val codecs = newCodecs()
  private val turns = new WriterTurns(provider.stateStoreId, scheduling)
  private val order = new OpenOrder

  /** The table that the last open had, or null: whether it is still this provider's the registry knows. */
  @volatile private var live: LiveTable = _
  private var key: StoreKey = _
  @volatile private var closed = false

  /** How many opens are to come before one waits for tables again, since that gave no memory the last time. */
  private var vainWaits = 0

  engine.isNeeded = () => registry.hasTables(this)

  private def id: StateStoreId = provider.stateStoreId

  // ---- opens

  def write(version: Long, ckptId: Option[String], forceSnapshot: Boolean, loadEmpty: Boolean): LaminaStateStore =
    opened(version) {
      order.directly(write(version, ckptId, forceSnapshot, loadEmpty, Thread.currentThread(), watch))
    }

  /** As `write`; a store that has to be restored is handed out before it is open. */
  def writeAhead(version: Long, ckptId: Option[String], forceSnapshot: Boolean, task: TaskContext): StateStore = {
    val opener = Thread.currentThread()
    def ahead(hold: LaminaStateStore => Unit): LaminaStateStore =
      opened(version)(write(version, ckptId, forceSnapshot, loadEmpty = false, opener, hold))
    opened(version) {
      order.aheadOr(hasTable)(new OpeningStore(id, version, task, ahead)) {
        write(version, ckptId, forceSnapshot, loadEmpty = false, opener, watch)
      }
    }
  }

  /**
   * @param opener whose open it is; another thread may do the work
   * @param hold sees to the end of the open, within its turn
   */
  private def write(
      version: Long,
      ckptId: Option[String],
      forceSnapshot: Boolean,
      loadEmpty: Boolean,
      opener: Thread,
      hold: LaminaStateStore => Unit
  ): LaminaStateStore = {
    val streaming = isOfQuery()
    if (loadEmpty && !streaming) engine.writesAnew()
    inTurn {
      requireOpen()
      val sent = attemptOf(ckptId)
      settleTable()
      // A provider that Spark did not load may only read, so its attempt is begun by its commit, and so is one whose
      // rows are here.
      val have = holds(sent)
      val begun =
        if (streaming && !(have && engine.beginsWithCommit(sent, loadEmpty, forceSnapshot)))
          Some(engine.begin(version, sent, loadEmpty, forceSnapshot, have))
        else None
      val base = begun.fold(resolve(version, sent, streaming, loadEmpty))(begun => sent.orElse(begun.baseAttempt))
      val table = tableFor(base, streaming)
      val open = new Open(TaskContext.get(), writes = true, scheduling, opener)
      def started(): LaminaStateStore = {
        enter(table, open)
        try start(table, open, version, sent, Draft(base, begun, loadEmpty, forceSnapshot, _))
        catch { case error: Throwable => table.leave(open); throw error }
      }
      val cleared = table.synchronized {
        awaitReaders(table)
        requireOpen()
        if (loadEmpty) {
          table.clear(Position.Start.copy(version = version))
          Some(started())
        } else {
          table.startMove(base)
          None
        }
      }
      val store = cleared.getOrElse(moved(table, version, base, writes = streaming)(started()))
      hold(store)
      store
    }
  }

  def read(version: Long, ckptId: Option[String]): LaminaStateStore = opened(version) {
    val streaming = isOfQuery()
    inTurn {
      requireOpen()
      val sent = attemptOf(ckptId)
      val base = resolve(version, sent, streaming)
      val table = readable(tableFor(base, streaming), base)
      // A commit may have come between: then the reader gets a table of its own.
      val store = enterReader(table, version, base, sent).orElse(enterReader(privateTable(), version, base, sent)).get
      watch(store)
      store
    }
  }

  /** Opens a version for reading; none where the table is at another one and cannot move. */
  private def enterReader(
      table: LiveTable,
      version: Long,
      base: Option[String],
      sent: Option[String]
  ): Option[LaminaStateStore] = {
    def entered(): LaminaStateStore = {
      val open = new Open(TaskContext.get(), writes = false, scheduling)
      enter(table, open)
      val codecs = if (table eq live) this.codecs else newCodecs()
      new LaminaStateStore(provider, table, open, codecs, version, sent)
    }
    val there = table.synchronized {
      requireOpen()
      use(table)
      if (!table.isBroken && table.at.content == Attempts.content(base)) Some(Some(entered()))
      else if (table.isBusy || table.hasReaders) Some(None)
      else {
        table.startMove(base)
        None
      }
    }
    there.getOrElse(Some(moved(table, version, base)(entered())))
  }

  /** Enters an open, if the table is still this provider's. Under the table's lock. */
  private def enter(table: LiveTable, open: Open): Unit = {
    use(table)
    table.enter(open)
  }

  /**
   * Turns a reader into the writer. What it read stays valid; from now on it sees its own changes. A provider that was
   * closed does this too, for the opens that it has left.
   */
  def upgrade(store: LaminaStateStore, forceSnapshot: Boolean): LaminaStateStore = opened(store.version) {
    order.directly {
      val streaming = isOfQuery()
      inTurn {
        settleTable()
        val base = resolve(store.version, store.sent, streaming)
        val begun =
          if (streaming && !(holds(base) && engine.beginsWithCommit(base, loadEmpty = false, forceSnapshot)))
            Some(engine.begin(store.version, base, loadEmpty = false, forceSnapshot, have = true))
          else None
        val table = tableFor(base, streaming)
        table.synchronized {
          awaitReaders(table)
          if (!store.open.allows(OpenAction.Upgrade)) store.open.transition(OpenAction.Upgrade)
          table.startMove(base)
        }
        moved(table, store.version, base, writes = streaming) {
          use(table)
          store.open.transition(OpenAction.Upgrade)
          if (store.live ne table) store.rebase(table, codecs)
          begin(store, Draft(base, begun, loadEmpty = false, forceSnapshot, _))
        }
        store
      }
    }
  }

  /** Rebuilds a version from an older snapshot, in a table of its own. */
  def replay(
      snapshot: Long,
      end: Long,
      readOnly: Boolean,
      snapshotAttempt: Option[String],
      endAttempt: Option[String]
  ): LaminaStateStore = opened(math.min(snapshot - 1, end - snapshot)) {
    opens(provider.isStreaming)
    val table = privateTable()
    val sent = attemptOf(endAttempt)
    val source = new StateSource {
      override def load(version: Long, attempt: Option[String], have: Option[Position])(
          onHeader: LoadHeader => Unit
      )(sink: EntrySink): Unit =
        engine.replay(snapshot, attemptOf(snapshotAttempt), version, attempt)(onHeader)(sink)
    }
    val open = new Open(TaskContext.get(), writes = !readOnly, scheduling)
    val base = closingOnError(table)(engine.resolve(end, sent, readOnly = true))
    table.synchronized { use(table); table.startMove(base) }
    val store = moved(table, end, base, source) {
      enter(table, open)
      if (readOnly) new LaminaStateStore(provider, table, open, newCodecs(), end, sent)
      else start(table, open, end, sent, Draft(base, None, loadEmpty = false, forceSnapshot = false, _))
    }
    watch(store)
    store
  }

  def changes(start: Long, end: Long, family: Option[String], endAttempt: Option[String])
      : NextIterator[(RecordType.Value, UnsafeRow, UnsafeRow, Long)] =
    new ChangeFeed(engine, newCodecs(), start, end, attemptOf(endAttempt), family)

  // ---- steps of an open

  /** Whether Spark has loaded the store for a query, to be asked by each open. */
  private def isOfQuery(): Boolean = {
    val streaming = provider.isStreaming
    opens(streaming)
    streaming
  }

  /** An open begins; a task of no query has the store for itself. */
  private def opens(streaming: Boolean): Unit = endsWithTask = !streaming && TaskContext.get() != null

  /** Spark's wrapping of whatever goes wrong while a store is opened. */
  private def opened[A](version: Long)(open: => A): A =
    try {
      if (version < 0) throw QueryExecutionErrors.unexpectedStateStoreVersion(version)
      if (pool.isNearlyFull) registry.askLater()
      var opened = false
      try {
        val result = open
        opened = true
        result
      } finally rest(opened)
    } catch {
      case error: OutOfMemoryError =>
        throw QueryExecutionErrors.notEnoughMemoryToLoadStore(id.toString, "LAMINA_STORE_PROVIDER", error)
      case error: StateStoreInvalidStateMachineTransition => throw error
      case error: StateStoreOperationOutOfOrder => throw error
      case error: LaminaError if error.kind == LaminaError.FileMissing || error.kind == LaminaError.StateNotRetained =>
        throw QueryExecutionErrors.failedToReadStreamingStateFileError(id.storeCheckpointLocation(), error)
      case error: LaminaError if StoreOpener.Told.exists(error.kind.startsWith(_)) => throw error
      case error: Throwable =>
        if (error.isInstanceOf[InterruptedException]) Thread.currentThread.interrupt()
        throw StateStoreErrors.cannotLoadStore(error)
    }

  /** Runs one open after the other. */
  private def inTurn[A](open: => A): A = {
    scheduling.acquire(opening)
    try open
    finally opening.unlock()
  }

  /** The end of an open. Where it failed, or the provider was closed meanwhile, nothing may use the table. */
  private def rest(opened: Boolean): Unit = {
    val table = live
    if (closed) registry.restAll(this)
    else if (!opened && table != null) table.synchronized(if (owns(table)) table.rest())
    if (!opened && (closed || endsWithTask) && !registry.hasTables(this)) leftAll()
  }

  private def requireOpen(): Unit = if (closed) throw wasClosed

  private def wasClosed: LaminaError = new LaminaError(LaminaError.StoreClosed, s"the provider of $id was closed")

  private def attemptOf(ckptId: Option[String]): Option[String] =
    if (storeConf.enableStateStoreCheckpointIds) ckptId else None

  /** The attempt of a version: what Spark sent, or what the engine says counts. */
  private def resolve(
      version: Long,
      sent: Option[String],
      streaming: Boolean,
      loadEmpty: Boolean = false
  ): Option[String] =
    if (sent.isDefined || version == 0 || loadEmpty) sent else engine.resolve(version, sent, readOnly = !streaming)

  private def holds(attempt: Option[String]): Boolean = {
    val table = live
    table != null && table.synchronized {
      val content = Attempts.content(attempt)
      owns(table) && !table.isBroken && (table.at.content == content || table.oneBack.exists(_.content == content))
    }
  }

  private def owns(table: LiveTable): Boolean = registry.isOwned(table, this)

  /** Whether there is a table of this provider, at whatever version. */
  def hasTable: Boolean = {
    val table = live
    table != null && owns(table)
  }

  /**
   * From now on an open uses the table, which does not give way while it moves. Another provider may have taken it since
   * this open chose it.
   */
  private def use(table: LiveTable): Unit = if (!registry.enter(table, this)) throw gone(table)

  /** Why a table is not this provider's any more. */
  private def gone(table: LiveTable): LaminaError =
    if (closed) wasClosed
    else if (registry.state(table) eq Ownership.Closed)
      new LaminaError(
        LaminaError.StoreStamp,
        s"the table of $id gave way to others, for want of memory, while it was opened; the task is tried again"
      )
    else
      new LaminaError(
        LaminaError.StoreStamp,
        s"the table of $id was taken over by another run of the query; stop one of the two, the task is tried again"
      )

  /**
   * Before a writer moves the table, to its base or by its commit: nobody reads on what this takes away, and the table
   * does not give way.
   */
  private def awaitReaders(table: LiveTable): Unit = {
    turns.awaitReaders(table, turns.deadline())
    use(table)
  }

  /** This provider's table, one that another provider had at that attempt, or a new one. */
  private def tableFor(attempt: Option[String], streaming: Boolean): LiveTable = {
    val content = Attempts.content(attempt)
    // A table that is read on is not given up for another one: the open waits for it, or gets one of its own.
    val isUsed = live != null && live.synchronized(owns(live) && (live.isBusy || live.hasReaders))
    if (streaming && !isUsed && content != Attempts.Empty && !holds(attempt)) {
      handOver(attempt, content) match {
        case Some(table) => adopt(table)
        case None => registry.evictOf(storeKey(streaming))
      }
    }
    if (live == null || !owns(live)) {
      val created = new LiveTable(pool, registry, scheduling, engine.layers, engine.openBelow)
      if (endsWithTask) registry.addPrivate(created, this) else registry.add(created, this)
      adopt(created)
    }
    if (streaming) registry.name(live, storeKey(streaming))
    live
  }

  private def handOver(attempt: Option[String], content: String): Option[LiveTable] = {
    val taken = registry.take(storeKey(streaming = true), content, this, _.isFor(pool, engine.layers))
    taken.foreach { table =>
      counters.add(Metrics.HandOvers, 1)
      // The engine looks that the attempt's file is there before its rows are used without having been read.
      try engine.resolve(version(attempt), attempt, readOnly = false)
      catch {
        case error: LaminaError if StoreOpener.SaysOfAttempt.exists(error.kind.startsWith(_)) =>
          registry.drop(table)
          throw error
        // nothing is said against its rows where the engine is lost or the store was closed: whoever opens it next looks
        case error: Throwable =>
          registry.giveBack(table)
          throw error
      }
    }
    taken
  }

  private def version(attempt: Option[String]): Long = attempt.map(_.split('.')(1).toLong).getOrElse(0L)

  private def adopt(table: LiveTable): Unit = {
    val old = live
    live = table
    if (old != null && (old ne table) && owns(old)) registry.drop(old)
  }

  private def storeKey(streaming: Boolean): StoreKey = {
    if (key == null) {
      val opened = engine.handle(readOnly = !streaming)
      key = StoreKey(opened.checkpoint, id.operatorId, id.partitionId, id.storeName)
    }
    key
  }

  /**
   * A table in which `base` can be read now: this one, or a private one while others use this one at another version.
   */
  private def readable(table: LiveTable, base: Option[String]): LiveTable = {
    val pending = table.synchronized(if (table.writer == null) table.pending else null)
    if (pending != null) pending.settleForOpen()
    val shared = table.synchronized {
      turns.takeOverIfEnded(table)
      table.at.content == Attempts.content(base) || !(table.isBusy || table.hasReaders)
    }
    if (shared) table else privateTable()
  }

  private def privateTable(): LiveTable = {
    val table = new LiveTable(pool, registry, scheduling, engine.layers, engine.openBelow)
    registry.addPrivate(table, this)
    table
  }

  /** Closes a private table that nobody will enter. */
  private def closingOnError[A](table: LiveTable)(body: => A): A =
    try body
    catch {
      case error: Throwable =>
        if (table ne live) registry.drop(table)
        throw error
    }

  /**
   * Brings a table that has started to move to a version, without its lock, then does what `entered` says, under it. A
   * private table on which this fails is closed.
   */
  private def moved[A](
      table: LiveTable,
      version: Long,
      base: Option[String],
      source: StateSource = engine,
      writes: Boolean = false
  )(entered: => A): A = closingOnError(table) {
    var is = false
    try {
      moveWithin(table, version, base, source)
      if (writes && (table eq live)) makeRoom(table, version, base)
      is = true
    } finally if (!is) table.synchronized { table.endMove(); table.rest() }
    table.synchronized {
      table.endMove()
      entered
    }
  }

  /** `move`, also where memory is too short for what a version has above its tables: once that is in them it needs none. */
  private def moveWithin(table: LiveTable, version: Long, base: Option[String], source: StateSource): Unit =
    try move(table, version, base, source)
    catch {
      case error: LaminaError
          if error.kind == LaminaError.MemoryCap && (table eq live) && table.isLayered && (source eq engine) && base.isDefined &&
            engine.isWriter =>
        val started = System.nanoTime()
        try engine.materialize(version, base)
        catch {
          case other: LaminaError =>
            logWarning(s"$id has rows above its tables that could not be put there: ${other.getMessage}")
            throw error
        }
        countWait(started)
        move(table, version, base, source)
    }

  private def move(table: LiveTable, version: Long, base: Option[String], source: StateSource): Unit = {
    val started = System.nanoTime()
    val how = table.moveTo(version, base, source)
    counters.add(Metrics.LoadMs, TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started))
    counters.add(Metrics.ReplayedBytes, table.takeReplayedBytes())
    how match {
      case Move.Loaded =>
        counters.add(Metrics.Reloads, 1)
        table.takeRestored().foreach { place =>
          counters.add(Metrics.FetchedBytes, place.fetched)
          counters.add(Metrics.ReusedBytes, place.bytes - place.fetched)
        }
      case Move.CaughtUp => counters.add(Metrics.CatchUps, 1)
      case Move.Relabelled => counters.add(Metrics.Relabels, 1)
      case Move.SteppedBack => counters.add(Metrics.StepBacks, 1)
      case _ => ()
    }
  }

  /**
   * Before a transaction on a table that stands on tables of RocksDB, where memory for rows is short: rows that are the same there
   * go, also those of tables at rest. If it is short all the same, or each batch is to be materialized, what this version holds
   * above its tables is put into them, and the open waits for that. So rows that must stay are those of the last transactions only.
   */
  private def makeRoom(table: LiveTable, version: Long, base: Option[String]): Unit =
    if (table.isLayered) {
      def forget(): Unit = {
        while (pool.isNearlyFull && table.synchronized(table.forgetSome())) ()
        if (!pool.isNearlyFull) pool.looksAtRest.reset()
        else if (pool.looksAtRest.isDue) {
          var gave = false
          registry.layeredAtRest(pool).foreach { other =>
            while (pool.isNearlyFull && other.synchronized(other.forgetSomeAtRest())) gave = true
          }
          pool.looksAtRest.done(gave)
        }
      }
      forget()
      // `opened` has asked the driver which queries have stopped; with hundreds of idle stores each open would ask of all
      while (pool.isNearlyFull && registry.evictOne(_.isOf(pool), asks = false)) ()
      val (written, worth, deep) =
        table.synchronized((table.isAhead, table.isWorthAWait && vainWaits == 0, table.isDeep))
      if (vainWaits > 0) vainWaits -= 1
      val waits = deep || (pool.isNearlyFull && worth) || engine.layers.exists(_.every == 1)
      if (waits && written && base.isDefined) {
        val (started, used) = (System.nanoTime(), pool.usedBytes)
        try engine.materialize(version, base)
        catch {
          case error: LaminaError =>
            if (table.synchronized(table.isTooDeep)) throw error
            logWarning(s"$id goes on without room for more rows: ${error.getMessage}")
        }
        table.synchronized(engine.takeOffered().foreach(standOn(table, _)))
        forget()
        // what others hold is not theirs to give back: no wait for a while
        if (pool.isNearlyFull && pool.usedBytes >= used) vainWaits = StoreOpener.VainWaits
        countWait(started)
      }
    }

  private def countWait(started: Long): Unit = {
    counters.add(Metrics.MemoryWaits, 1)
    counters.add(Metrics.MemoryWaitMs, TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - started))
  }

  private def start(
      table: LiveTable,
      open: Open,
      version: Long,
      sent: Option[String],
      draft: ColumnFamilies => Draft
  ): LaminaStateStore = {
    val store = new LaminaStateStore(provider, table, open, if (table eq live) codecs else newCodecs(), version, sent)
    begin(store, draft)
    store
  }

  private def begin(store: LaminaStateStore, draft: ColumnFamilies => Draft): Unit = {
    val table = store.live
    if (table eq live) engine.takeOffered().foreach(standOn(table, _))
    table.begin(store.open)
    table.announce(store.codecs.updated(table.working))
    if (!table.working.byName.contains(StateStore.DEFAULT_COL_FAMILY_NAME)) table.create(store.codecs.default)
    store.draft = draft(table.working)
    store.attach()
  }

  /** Newer tables are no need: where they cannot be opened, the table goes on with those that it has. */
  private def standOn(table: LiveTable, place: InPlace): Unit =
    try
      if (table.standOn(place)) {
        counters.add(Metrics.Raises, 1)
        engine.isDue = table.isDue
      }
    catch { case error: LaminaError => logWarning(s"$id does not stand on newer tables: ${error.getMessage}") }

  /** Gives the rows up when the task ends; fails where it has failed already. */
  private def watch(store: LaminaStateStore): Unit = {
    val task = store.open.task
    if (task != null) {
      task.addTaskCompletionListener[Unit] { _ =>
        try store.endWithTask()
        catch { case NonFatal(error) => logWarning(s"$store could not be ended with its task", error) }
      }
      task.getTaskFailure.foreach(failure => throw failure)
    }
  }

  /** Waits until nobody else writes and the last commit is settled, where the table is still this provider's. */
  private def settleTable(): Unit = {
    val table = live
    if (table != null) {
      val deadline = turns.deadline()
      var settled = false
      while (!settled) {
        val pending = table.synchronized {
          turns.await(table, deadline, () => owns(table))
          if (!owns(table)) null
          else {
            // others may have had it relieved since its commit
            engine.isDue = table.isDue
            table.pending
          }
        }
        if (pending == null) settled = true else pending.settleForOpen()
      }
    }
  }

  // ---- maintenance and end

  /** The version that the table shows, if there is a table of this provider. */
  def version: Option[Long] = Option(live).filter(owns).map(table => table.synchronized(table.at.version))

  def maintainFiles(): Unit = if (!closed) engine.maintain()

  def maintainMemory(): Unit = {
    val table = live
    if (table != null && owns(table)) scheduling.reclaim(table)
  }

  /** Whether its files are on another machine; what is wrong with opening `version` is wrong with asking. */
  def isRemote(version: Long): Boolean = opened(version) {
    requireOpen()
    engine.handle(readOnly = false).remote
  }

  /** What the engine said of the store's files when its last commit was durable. */
  def stored: Map[StateStoreCustomMetric, Long] = Metrics.stored(engine)

  /** This store's share of the bytes that belong to all stores: of the wire's buffers, and of local copies. */
  def shares: Map[StateStoreCustomMetric, Long] =
    Map(
      Metrics.BufferBytes -> engine.bufferBytes,
      Metrics.CopiedBytes -> EngineStore.copiedBytes,
      Metrics.LocalBytes -> EngineStore.localBytes
    )
      .transform((_, bytes) => bytes / math.max(1, StatePool.tables.get))

  /**
   * Called by maintenance threads, also while opens are in use: those go on, and the last one to end parks the table
   * for the next provider. Waits for no commit and no open.
   */
  def close(): Unit = if (!closed) {
    closed = true
    registry.leave(this)
  }

  override def isStopped: Boolean = provider.isStopped

  /** The engine may take its time, and neither a table's lock nor Spark's maintenance must wait for it. */
  override def leftAll(): Unit = engine.closeLater()
}

object StoreOpener {
  private val VainWaits = 8

  /** Kinds of errors about an attempt's files, as opposed to errors of asking for them. */
  private val SaysOfAttempt = Seq("file.", "state.", "attempt-id.")

  /**
   * Kinds that somebody has to do something about. They reach the user as they are: of an error in Spark's wrapping
   * PySpark may show no more than that a store could not be loaded.
   */
  private val Told = Seq(
    "settings.",
    "version.",
    "engine.start",
    "engine.dependency",
    "storage.scheme",
    "storage.denied",
    "memory.",
    "file.damaged",
    "file.version",
    "file.identity",
    "attempt-id."
  )
}
