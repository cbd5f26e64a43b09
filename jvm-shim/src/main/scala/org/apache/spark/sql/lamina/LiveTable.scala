package org.apache.spark.sql.lamina

import scala.collection.mutable
import scala.util.Try
import scala.util.control.{NoStackTrace, NonFatal}

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.state.StateStoreCustomMetric
import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.sql.lamina.table._

/**
 * What a table holds outside of a transaction.
 *
 * @param version label under which it is open now; versions that changed nothing share a content
 * @param content attempt that wrote the rows, or [[Attempts.Empty]]
 */
final case class Position(version: Long, content: String, families: ColumnFamilies)

object Position {
  val Start: Position = Position(0L, Attempts.Empty, ColumnFamilies.Empty)
}

/** How a table came to the version that was asked for. */
object Move extends Enumeration {
  val Stayed, SteppedBack, Relabelled, CaughtUp, Loaded = Value
}

/** What the engine says before it sends the rows of a version. */
final case class LoadHeader(
    attempt: Option[String],
    fromHave: Boolean,
    families: ColumnFamilies,
    rows: Map[Int, Long],
    bytes: Map[Int, Long] = Map.empty,
    inPlace: Option[InPlace] = None,
    replayedBytes: Long = 0L
)

/**
 * That a table stands on tables which are read in place.
 *
 * @param every how many versions are put into them at once, or up to a quarter fewer
 * @param holdsTimers whether all rows of timers are held in memory
 * @param metrics what is counted as rows are read from them, by the names of metrics
 */
final case class Layers(every: Long, holdsTimers: Boolean = false, metrics: Set[String] = Set.empty) {

  /** Whether all rows of a column family are held in memory. */
  private[lamina] def holds(family: ColumnFamily): Boolean =
    holdsTimers && Layers.Timers.exists(family.name.startsWith(_))

  /** Whether rows that are written from now on are best told from those before: which will be below soon. */
  private[lamina] def isDue(below: Below, version: Long): Boolean =
    version - (if (below == null) 0L else below.version) >= every - every / 4 - 1
}

object Layers {

  /** How the names of the column families of `transformWithState`'s timers begin. */
  private val Timers = Seq("$procTimers", "$eventTimers")
}

/** Where versions come from. */
trait StateSource {

  /**
   * Sends a version. `have` offers rows that the table holds already: the answer is then either what changed since,
   * oldest first, or everything, newest first.
   */
  def load(
      version: Long,
      attempt: Option[String],
      have: Option[Position]
  )(onHeader: LoadHeader => Unit)(sink: EntrySink): Unit
}

/**
 * The table of one store with everything that belongs to its rows: which version they are, one version back, the
 * siblings it knows, the open transaction and the opens that may still read rows.
 *
 * Its monitor is the store's one lock: every member but `moveTo` is called under it (`live.synchronized`), also when the
 * table goes from one provider to the next. It is never held while somebody waits for the engine or a storage.
 * Invariants:
 *   1. At most one writer; a transaction is open exactly while there is a writer that has begun.
 *   1. While a commit is pending the table already shows its version, and no open changes the table.
 *   1. While the table moves, only the thread that moves it touches its rows: no open has the generation that it will have.
 *   1. While a writer sends, nobody changes rows, the writer's own calls included; its base may be read.
 */
final class LiveTable(
    pool: PagePool,
    registry: TableRegistry = TableRegistry.ofExecutor,
    private[lamina] val scheduling: Scheduling = Scheduling.Threads,
    layers: Option[Layers] = None,
    openBelow: (InPlace, ReadCounts) => Below = TablesBelow.open(_, _),
    openSpill: () => Spill = () => SpillDatabase.open()
) {
  import LiveTable.Sibling

  val table = new StoreTable(pool, layers.isDefined, openSpill)
  StatePool.tables.incrementAndGet()

  @volatile private var position = Position.Start
  private var before: Position = _

  /** The digest of the transaction that led here from `before`; null where nobody has asked for it. */
  private var lastDigest: String = _
  private val siblings = mutable.LinkedHashMap.empty[String, Sibling]
  private val opens = mutable.LinkedHashSet.empty[Open]

  /** What RocksDB counts of reads, or null. */
  private val reads = layers.map(_.metrics).filter(_.nonEmpty).map(new ReadCounts(_)).orNull

  /** Tells what was read from tables since the last call, and how they are layered. */
  private[lamina] def countBelow(add: (StateStoreCustomMetric, Long) => Unit): Unit = if (reads != null) {
    reads.drain(add)
    if (reads.has(Metrics.GetCount)) add(Metrics.GetCount, table.readsBelow._1 - readBefore)
    Option(table.below).filter(_.files > 0).foreach { below =>
      for ((metric, files) <- Metrics.FilesAtLevels.zip(below.filesAtLevels) if reads.has(metric)) add(metric, files)
      if (reads.has(Metrics.BlockCacheUsage)) add(Metrics.BlockCacheUsage, BlockCache.part)
    }
    readBefore = table.readsBelow._1
  }

  private var readBefore = 0L

  /** Whether rows of versions that the next state below is likely to have are told from newer ones. */
  private var isCut = false

  /** Bytes that versions above the state below have written, by version. */
  private val written = mutable.TreeMap.empty[Long, Long]

  /** The attempts whose rows it held since its last load, oldest first. */
  private var passed = Vector.empty[String]
  private var epoch = 0L
  private var moving = false

  /** Whether the move that is under way loads the version anew, whatever the table holds. */
  private var reloads = false

  /** The open that has the transaction, or null. */
  var writer: Open = _

  /** The last commit while its file is not known to be durable, or null. */
  var pending: DurableCommit = _

  /** Column families as the open transaction sees them. */
  var working: ColumnFamilies = ColumnFamilies.Empty

  var closed = false

  def at: Position = position

  /** Changes whenever the rows outside of a transaction change: opens that read an older version are stale then. */
  def generation: Long = epoch

  /** Whether there is one version to step back to, and which. */
  def oneBack: Option[Position] = Option(before).filter(_ => table.canStepBack)

  def isBusy: Boolean = writer != null || pending != null || moving

  /**
   * From now on `moveTo` may be called, without the lock. Opens that read other rows are stale. The registry has the table
   * in use or leaving: it gives way to nobody.
   */
  def startMove(attempt: Option[String]): Unit = {
    if (isBusy) throw new LaminaError(LaminaError.Internal, "a busy table cannot move to another version")
    reloads = isBroken
    if (reloads || !holdsRowsOf(attempt)) epoch += 1
    moving = true
  }

  def endMove(): Unit = if (moving) {
    moving = false
    scheduling.reclaim(this)
    notifyAll()
  }

  /** Waits until the table does not move. */
  def awaitMoved(): Unit = while (moving) scheduling.await(this, 0L)

  /** Whether rows of this version are read: by opens for reading, and by those that committed it and whose task goes on. */
  def hasReaders: Boolean = opens.exists { open =>
    val reads = open.state == OpenState.Reading || (open.state == OpenState.Committed && open.task != null)
    reads && !open.isOver
  }

  /** Whether a task other than `task` reads on what it has committed. */
  def isReadOnBesides(task: TaskContext): Boolean = opens.exists(open => open.isReadOn && (open.task ne task))

  /** Whether the rows are those of `attempt`, or of one with the same base and the same changes. */
  def holdsRowsOf(attempt: Option[String]): Boolean = {
    val wanted = Attempts.content(attempt)
    position.content == wanted || sibling(wanted).exists(isTwin)
  }

  private def sibling(content: String): Option[Sibling] =
    siblings.get(content).filter(other => before != null && other.base == before.content)

  private def isTwin(other: Sibling): Boolean =
    table.canStepBack && other.families == position.families && other.digest == digest

  /** Only a second attempt on one base asks for it. */
  private def digest: String = {
    if (lastDigest == null) lastDigest = table.lastDigest
    lastDigest
  }

  // ---- opens

  def enter(open: Open): Unit = {
    open.table = this
    opens += open
    // rows of a layered family are copied under the lock; scans of others keep addresses
    if (layers.forall(_.holdsTimers)) table.readersActive(open.stamp)
  }

  /** Whether the table is of a pool and of a backend: another run of a query may have another one. */
  def isFor(pool: PagePool, layers: Option[Layers]): Boolean = isOf(pool) && this.layers == layers

  /** Whether rows may go at any time: who hands them out copies them. */
  val isLayered: Boolean = layers.isDefined

  /** Whether what it stands on cannot be read: then it is to be loaded anew, whatever it holds. */
  def isBroken: Boolean = isLayered && table.below != null && table.below.isBroken

  /**
   * The rows that an open handed out are not used any more. One that sends its commit leaves the table that it writes later, and
   * at once the one that it read before it was upgraded.
   */
  def leave(open: Open): Unit = if ((writer eq open) && (open.state eq OpenState.Sending)) open.leavesLater = true
  else if (opens.remove(open)) {
    giveUp(open)
    if (writer eq open) abort()
    rest()
    notifyAll()
  }

  /**
   * Tells the registry where nothing uses the table: no open of a task that lives, no transaction, no commit that is
   * pending. Opens without a task that only read count as ended when the provider was closed.
   */
  def rest(): Unit = if (!isBusy && !opens.exists(open => open.task != null && !open.isOver)) {
    if (registry.state(this) eq Ownership.Leaving) {
      // They would keep what the next provider gives up.
      opens.foreach(giveUp)
      opens.clear()
    }
    registry.rest(this)
  }

  /** Whether another provider may have the table for a content. */
  def canGive(content: String): Boolean =
    !closed && !isBusy && !isBroken && (position.content == content || oneBack.exists(_.content == content))

  private def giveUp(open: Open): Unit = {
    if (open.table eq this) open.table = null
    open.whenUnread { () =>
      table.readersEnded(open.stamp)
      scheduling.reclaim(this)
    }
  }

  // ---- transaction

  def begin(open: Open): Unit = {
    table.begin()
    writer = open
    working = position.families
    addFamilies(working)
  }

  /** Makes column families part of the open transaction. */
  def announce(families: ColumnFamilies): Unit = {
    working = families
    addFamilies(families)
  }

  /**
   * Creates a column family in the open transaction. An id whose family an aborted transaction made in another shape is
   * passed over.
   */
  def create(family: ColumnFamily): Unit = {
    while (!table.takes(working.next, family.ordered, family.multiValue, isHeld(family)))
      working = working.copy(next = working.next + 1)
    ColumnFamily.requireId(working.next, s"column family '${family.name}'")
    table.addFamily(working.next, family.ordered, family.multiValue, isHeld(family))
    working = working.add(id => family.copy(id = id))
  }

  /** The end of a writer's send, by `action`. */
  def endSend(open: Open, action: OpenAction): Unit = {
    open.transition(action)
    if (action == OpenAction.Fail) table.unsettle()
    if (open.leavesLater) leave(open)
    notifyAll()
  }

  def abort(): Unit = {
    table.abort()
    writer = null
    working = position.families
    scheduling.reclaim(this)
    notifyAll()
  }

  /** Reclaims some dead pages; whether there is more to do now. */
  def reclaim(pages: Int): Boolean = {
    // A parked table is left alone: it may be closed for its memory while it reclaims.
    !closed && !moving && (registry.state(this) ne Ownership.Parked) && table.maintain(pages)
  }

  /**
   * Before a commit is sent: where memory is short, puts its changes on the disk, so that tables at rest leave room for others. All of
   * them, where some are there already.
   */
  def settle(): Unit = {
    val isShort = isLayered && pool.isNearlyFull && table.cameBytes > shareBytes / LiveTable.PartOfShare
    if (isShort && table.canSpill) table.spillEarly()
    table.settleSpill()
  }

  /** Ends a transaction that changed nothing: the rows keep their content under the next version. */
  def keep(version: Long): Unit = {
    abort()
    position = position.copy(version = version)
  }

  /** Ends a transaction whose change set, of so many bytes of rows, was sent. */
  def advance(next: Position, bytes: Long = 0L): Unit = {
    val number = LiveTable.versionOf(next.content)
    if (isLayered) written(number) = if (table.isSpilled) 0L else bytes
    committed(number)
    writer = null
    lead(position, next)
    scheduling.reclaim(this)
    notifyAll()
  }

  /** Ends the table's transaction by a version. */
  private def committed(version: Long): Unit =
    try table.commit(version)
    catch {
      // what came out of half a commit is no version
      case error: Throwable =>
        writer = null
        clear(Position.Start)
        throw error
    }

  /** The table is at `to` now, and one transaction behind it, where that is known, is `from`. */
  private def lead(from: Position, to: Position): Unit = {
    if (layers.isDefined) {
      val older = passed.indexOf(if (from == null) to.content else from.content)
      passed = (if (from == null && older < 0) Vector.empty else passed.take(older + 1)) :+ to.content
      if (passed.size > LiveTable.MaxPassed) passed = passed.drop(1)
      val version = LiveTable.versionOf(to.content)
      table.at = version
      written.filterInPlace((number, _) => number <= version)
      // once, until another state comes below
      layers.foreach { layers =>
        if (!isCut && (layers.isDue(table.below, version) || isDue)) isCut = table.cut(version)
      }
    }
    before = from
    lastDigest = null
    position = to
    working = to.families
    epoch += 1
  }

  /** Whether it has rows of versions above the tables that it stands on. */
  def isAhead: Boolean = written.nonEmpty || table.spillsBelow > 0

  /** Bytes of rows in memory, as far as is known, that were written above the state below. */
  def writtenBytes: Long = written.values.sum

  /** The table's share of half the memory. */
  private def shareBytes: Long = pool.tableBytes / 2 / math.max(1, StatePool.tables.get)

  /** Whether these are the table's share, so that they had better be put into tables soon. */
  def isDue: Boolean = isLayered && (table.spillsBelow > 0 || writtenBytes > shareBytes)

  /** Whether these are so many that waiting until they are in tables is of use. */
  def isWorthAWait: Boolean = table.spillsBelow > 0 || writtenBytes > shareBytes / LiveTable.PartOfShare

  /** Whether a look for a row has become long, since changes of many versions lie on the disk that are not in tables. */
  def isDeep: Boolean = table.spillsBelow >= LiveTable.MostSpills

  /** Whether it has too many databases on the disk for another one, and the batch is to fail where no tables can be made. */
  def isTooDeep: Boolean = table.spillsBelow >= LiveTable.TooManySpills

  /**
   * Has a table that stands on another state forget some rows that are the same there, and gives some memory back that is free
   * then; whether there may be more. Not in a transaction; also while it moves, by whoever moves it.
   */
  def forgetSome(): Boolean = !closed && isLayered && writer == null && {
    val bytes = table.forgetClean(LiveTable.ForgottenAtOnce)
    val more =
      try table.maintain(LiveTable.ReclaimedAtOnce)
      catch { case error: LaminaError if error.kind == LaminaError.MemoryCap => false }
    bytes > 0 || more
  }

  /** Puts what is only in the memory of a table that nothing uses on the disk. */
  def relieveAtRest(): Boolean =
    !closed && isLayered && !isBusy && isAtRest && writtenBytes > LiveTable.WorthADatabase &&
      table.spillsBelow < LiveTable.MostSpills && {
        val relieved = table.relieve()
        written.clear()
        relieved
      }

  /** The same for a table that nothing uses, whoever it belongs to; no other one is touched. */
  def forgetSomeAtRest(): Boolean = !isBusy && isAtRest && forgetSome()

  /** Whether nothing uses it, as far as the registry knows. With or without the lock. */
  def isAtRest: Boolean = LiveTable.AtRest(registry.state(this))

  def isOf(pool: PagePool): Boolean = this.pool eq pool

  private var restored = List.empty[InPlace]

  /** The tables that restores came on top of since this was last asked, those too that did not come to their end. */
  def takeRestored(): List[InPlace] = synchronized {
    val found = restored
    restored = Nil
    found
  }

  private var replayedBytes = 0L

  /** The bytes of increments that loads read since this was last asked, those too that did not come to their end. */
  def takeReplayedBytes(): Long = synchronized {
    val found = replayedBytes
    replayedBytes = 0L
    found
  }

  /**
   * Has the table stand on newer tables of its own past, if these are; else they are removed. Whether it does. Between transactions;
   * while it moves, by whoever moves it.
   */
  def standOn(place: InPlace): Boolean = {
    val at = place.attempt.fold(-1)(attempt => passed.indexOf(Attempts.content(Some(attempt))))
    val isNewer =
      writer == null && pending == null && at >= 0 && (table.below == null || table.below.version < place.version)
    if (!isNewer) place.remove()
    else {
      val below = openBelow(place, reads)
      // the version before would not be above it
      if (before != null && passed.indexOf(before.content) < at) table.forgetUndo()
      val isTable = passed(at) == position.content
      table.standOn(below, isTable)
      // where they come before anybody thought of it, the next ones free what was written until now
      if (!isCut && !isTable) table.cut(table.at)
      isCut = false
      written.filterInPlace((version, _) => version > place.version)
      scheduling.reclaim(this)
    }
    isNewer
  }

  /** Takes a commit back whose file did not become durable. */
  def rollBack(content: String): Unit = {
    siblings -= content
    if (position.content == content && content != Attempts.Empty) {
      if (table.canStepBack && before != null) stepBack() else clear(Position.Start)
    }
    notifyAll()
  }

  /** Empties the table, for a version that is built from nothing. */
  def clear(to: Position): Unit = {
    table.close()
    isCut = false
    written.clear()
    lead(null, to)
  }

  // ---- opening a version

  /**
   * Brings the table to a version, moving as few rows as possible.
   *
   * Two attempts of N+1 are both relative to N. Where the attempt that is asked for (A) is not the one that the table
   * holds (B), both based on N: with equal change sets only the label changes; otherwise B is undone, and A's increment
   * applied.
   */
  def moveTo(version: Long, attempt: Option[String], source: StateSource): Move.Value = {
    if (writer != null || pending != null)
      throw new LaminaError(LaminaError.Internal, "a busy table cannot move to another version")
    val wanted = Attempts.content(attempt)
    if (reloads) {
      reloads = false
      clear(Position.Start)
    }
    if (position.content == wanted) {
      position = position.copy(version = version)
      Move.Stayed
    } else if (oneBack.exists(_.content == wanted)) {
      setAside()
      position = position.copy(version = version)
      Move.SteppedBack
    } else if (wanted == Attempts.Empty) {
      clear(Position.Start.copy(version = version))
      Move.Stayed
    } else {
      val sibling = this.sibling(wanted)
      val base = sibling.map(_.base)
      if (sibling.exists(isTwin)) {
        remember()
        position = position.copy(version = version, content = wanted)
        table.at = LiveTable.versionOf(wanted)
        // the rows are the same
        if (passed.nonEmpty) passed = passed.init :+ wanted
        Move.Relabelled
      } else {
        if (oneBack.isDefined && (sibling.isDefined || position.version >= version)) setAside()
        // On the empty version an increment is all there is, so that is no reload either.
        val isBase = base.contains(Attempts.Empty) && position.content == Attempts.Empty
        val how = load(version, attempt, source)
        if (isBase) Move.CaughtUp else how
      }
    }
  }

  private def load(version: Long, attempt: Option[String], source: StateSource): Move.Value =
    try loadOnTop(version, attempt, source)
    catch {
      // rows were out when the file of others was found broken: from the beginning the engine may go around it
      case broken: LiveTable.BrokenOff =>
        try load(version, attempt, source, None)
        catch {
          case NonFatal(again) =>
            val error = again match {
              case another: LiveTable.BrokenOff => another.error
              case other => other
            }
            error.addSuppressed(broken.error)
            throw error
        }
    }

  private def loadOnTop(version: Long, attempt: Option[String], source: StateSource): Move.Value =
    try load(version, attempt, source, Some(position).filter(_.content != Attempts.Empty))
    catch {
      case _: LiveTable.OtherShape => load(version, attempt, source, None)
      // the whole version may need less: what is in tables is read from there
      case error: LaminaError
          if isLayered && error.kind == LaminaError.MemoryCap && position.content != Attempts.Empty =>
        load(version, attempt, source, None)
    }

  private def load(
      version: Long,
      attempt: Option[String],
      source: StateSource,
      have: Option[Position]
  ): Move.Value = {
    var header: LoadHeader = null
    var applied = false
    var miscount = Option.empty[String]
    val entries = new RestoredEntries(table)
    val heldBefore = if (isLayered && have.isDefined) table.memory.total else 0L
    val onHeader = (received: LoadHeader) => {
      if (received.fromHave && !takesAll(received.families)) throw new LiveTable.OtherShape
      header = received
      replayedBytes += header.replayedBytes
      entries.start(onTop = header.fromHave)
      if (header.fromHave) table.begin() else clear(Position.Start)
      if (!header.fromHave) {
        restored ++= header.inPlace
        header.inPlace.foreach(place => table.standOn(openBelow(place, reads)))
      }
      addFamilies(header.families)
      if (!header.fromHave && header.inPlace.isEmpty) header.rows.foreach { case (family, rows) =>
        if (rows > 0) table.reserve(family, rows)
      }
    }
    try {
      try source.load(version, attempt, have)(onHeader)(entries)
      catch {
        case error: LaminaError if header != null && error.kind.startsWith("file.") =>
          throw new LiveTable.BrokenOff(error)
      }
      if (!header.fromHave) {
        if (header.inPlace.isDefined)
          header.families.byName.values.filter(isHeld).foreach(family => table.hold(family.id, entries))
        table.endFill()
      }
      // what is below is not counted
      if (header.inPlace.isDefined) header.rows.foreach { case (family, rows) =>
        Option(table.familyOrNull(family)).filter(_.forgets).foreach(_.setCounts(
          rows,
          header.bytes.getOrElse(family, 0L)
        ))
      }
      miscount = header.rows.collectFirst {
        case (family, rows) if rowsOf(family) != rows =>
          s"$rows rows in column family $family, and restoring it gave ${rowsOf(family)}"
      }
      miscount.foreach { what =>
        throw new LaminaError(
          LaminaError.FileDamaged,
          s"the manifest of ${header.attempt.orElse(attempt).mkString} says that version $version has $what: its files " +
            "do not make it up. Restart the query from an older batch whose version is whole (lamina fsck says which)"
        )
      }
      applied = true
    } finally if (!applied && header != null) {
        // rows on top of which other rows came out than there should be are not trusted either
        if (header.fromHave && miscount.isEmpty) table.abort() else clear(Position.Start)
      }
    val next = Position(version, Attempts.content(header.attempt.orElse(attempt)), header.families)
    val number = LiveTable.versionOf(next.content)
    if (isLayered && (table.below == null || table.below.version < number))
      written(number) = math.max(1L, table.memory.total - (if (header.fromHave) heldBefore else 0L))
    if (header.fromHave) {
      committed(number)
      lead(position, next)
      scheduling.reclaim(this)
      Move.CaughtUp
    } else {
      lead(null, next)
      Move.Loaded
    }
  }

  private def rowsOf(family: Int): Long = Option(table.familyOrNull(family)).fold(0L)(_.rows)

  /** Undoes the last attempt, which may be asked for again when another one was made on its base. */
  private def setAside(): Unit = {
    remember()
    stepBack()
  }

  private def stepBack(): Unit = {
    try table.stepBack()
    catch {
      // Half a step back is no version at all.
      case error: Throwable =>
        clear(Position.Start)
        throw error
    }
    lead(null, before)
  }

  private def takesAll(families: ColumnFamilies): Boolean =
    families.byName.values.forall(family => table.takes(family.id, family.ordered, family.multiValue, isHeld(family)))

  private def addFamilies(families: ColumnFamilies): Unit =
    families.byName.values.foreach(addFamily(_))

  /** The table of a column family. */
  def addFamily(family: ColumnFamily): FamilyTable =
    table.addFamily(family.id, family.ordered, family.multiValue, isHeld(family))

  private def isHeld(family: ColumnFamily): Boolean = layers.exists(_.holds(family))

  /** Keeps what is needed to know the attempt again that the table holds. */
  private def remember(): Unit = {
    siblings -= position.content
    siblings += position.content -> Sibling(before.content, digest, position.families)
    if (siblings.size > LiveTable.MaxSiblings) siblings -= siblings.head._1
  }

  /** Gives the memory back; what was handed out where it lies stays until the tasks that have it have ended. */
  def close(): Unit = if (!closed) {
    closed = true
    StatePool.tables.decrementAndGet()
    opens.foreach(giveUp)
    opens.clear()
    clear(Position.Start)
    siblings.clear()
    if (reads != null) reads.close()
    notifyAll()
  }

  /** Waits, for a moment at most, until tasks that have ended give back what they read of a closed table. */
  def awaitReaders(): Unit = scheduling.awaitLeft(() => !table.hasReadPages)
}

object LiveTable {

  /** Attempts that were set aside, and are told from others on their base by digest. */
  private val MaxSiblings = 16

  private val MaxPassed = 1000

  /** Bytes of rows, and pages, in one step: some milliseconds. */
  private val ForgottenAtOnce = 8L << 20
  private val ReclaimedAtOnce = 64

  private val PartOfShare = 8

  /** Sets of changes on top of each other on the disk before a batch waits for them to be in tables. */
  private val MostSpills = 4

  /** So many are descriptors and memory for nothing, and make each look long. */
  private val TooManySpills = 32

  /** Fewer bytes of rows are not put on the disk by themselves. */
  private val WorthADatabase = 256L << 10

  private val AtRest = Set[Ownership](Ownership.Idle, Ownership.Parked)

  /** The version that made a content; another one may stand for it, too, where nothing was changed. */
  private def versionOf(content: String): Long =
    if (content == Attempts.Empty) 0L else Try(content.split('.')(1).toLong).getOrElse(0L)

  /** A transaction that was aborted left a column family whose id another attempt gave to one of another shape. */
  private final class OtherShape extends RuntimeException with NoStackTrace

  /** A file was found broken after the header had come. */
  private final class BrokenOff(val error: LaminaError) extends RuntimeException with NoStackTrace

  /** An attempt that this table held: its base, and what it changed. */
  private final case class Sibling(base: String, digest: String, families: ColumnFamilies)
}
