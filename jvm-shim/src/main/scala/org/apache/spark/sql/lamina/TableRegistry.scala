package org.apache.spark.sql.lamina

import java.util.concurrent.TimeUnit

import scala.collection.mutable

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.table.PagePool
import org.apache.spark.sql.lamina.wire.DaemonThreads

/**
 * Which store a table belongs to, whatever provider or run has it: the checkpoint's uuid and the store within it.
 */
final case class StoreKey(checkpoint: String, operator: Long, partition: Int, name: String)

/** Who uses a table. */
sealed abstract class Ownership(override val toString: String)

object Ownership {

  /** A provider has it, and opens use it. */
  case object InUse extends Ownership("IN_USE")

  /** A provider has it, and nothing uses it: between two batches, or after the query has stopped. */
  case object Idle extends Ownership("IDLE")

  /** Its provider was closed: the opens that are there go on. */
  case object Leaving extends Ownership("LEAVING")

  /** Nobody's: it waits for the next provider of its store. */
  case object Parked extends Ownership("PARKED")

  case object Closed extends Ownership("CLOSED")
}

/** What can happen to the ownership of a table. */
sealed abstract class OwnershipAction(override val toString: String)

object OwnershipAction {

  /** An open begins: before its table moves. */
  case object Enter extends OwnershipAction("enter")

  /** Its last open has ended, and no commit of it is pending. */
  case object Rest extends OwnershipAction("rest")

  /** Its provider is closed. */
  case object Leave extends OwnershipAction("leave")

  /** Another provider takes it over. */
  case object Take extends OwnershipAction("take")

  /** It gives way: its memory is needed, or its time is over. */
  case object Evict extends OwnershipAction("evict")

  /** Its owner has no use for it. */
  case object Drop extends OwnershipAction("drop")
}

/** A provider, as the registry knows it. */
trait TableOwner {

  /** No table of it is left in the registry, and it was closed. No lock of the registry is held. */
  def leftAll(): Unit

  /** Whether Spark has stopped its query on this executor. May wait for the driver. */
  def isStopped: Boolean

  /** How long its tables stay for the next provider when it is closed. */
  def stayMs: Long

  /**
   * Whether it serves one task, which may not close it: of a state reader whose store could not be opened Spark closes no
   * provider. Then nothing is left when its tables are.
   */
  @volatile private[lamina] var endsWithTask = false

  /** Guarded by the registry. */
  private[lamina] var isClosed = false

  /** Until when the driver's word counts that its query has stopped; an open ends that. Guarded by the registry. */
  private[lamina] var stoppedUntil = Long.MinValue
}

/**
 * All tables of this executor, by store, and who uses each of them. Providers keep no ownership of their own: what they
 * may do with a table follows from its state here and `TableRegistry.transitions`.
 *
 * Invariants:
 *   1. A table is taken only for the same store, a content that it holds or can step back to, and with neither an open
 *      transaction nor a commit that may still fail.
 *   1. A table that a closed provider takes or makes is leaving from the start: it is given up when its last open ends.
 *   1. Of a leaving table only one with a store, a content and a time to stay is parked; the others are closed.
 *   1. Idle tables give way only where their query has stopped.
 *   1. Lock order: a table's monitor, then this registry's. The registry takes a monitor only without its own lock, and
 *      only of tables that it has just closed or that it offers to a taker.
 *
 * @param nowMs milliseconds, monotonic
 * @param later runs something after so many milliseconds
 */
final class TableRegistry(nowMs: () => Long, later: (Long, () => Unit) => Unit) extends Logging {
  import Ownership._
  import OwnershipAction._
  import TableRegistry.Entry

  /** Least recently used first. */
  private val tables = mutable.LinkedHashMap.empty[LiveTable, Entry]

  /** When the timers are due that are set: each was set where none was due before it. Milliseconds. */
  private val wakes = mutable.TreeSet.empty[Long]

  /** Whether a thread asks the driver, and when the next one may. */
  private var asking = false
  private var nextAsk = Long.MinValue

  // ---- what a provider does

  /** Makes a table known that `owner` has just made and will enter. */
  def add(table: LiveTable, owner: TableOwner): Unit = synchronized {
    tables(table) = new Entry(owner, if (owner.isClosed) Leaving else InUse)
  }

  /** A table that nobody but its reader will ever use: it is closed when its open ends. */
  def addPrivate(table: LiveTable, owner: TableOwner): Unit = synchronized {
    tables(table) = new Entry(owner, Leaving)
  }

  /** From now on the table can be handed over to other providers of the store. */
  def name(table: LiveTable, key: StoreKey): Unit = synchronized(tables.get(table).foreach(_.key = Some(key)))

  /** Whether the table is `owner`'s, which may have been closed. */
  def isOwned(table: LiveTable, owner: TableOwner): Boolean =
    synchronized(tables.get(table).exists(entry => entry.owner eq owner))

  def hasTables(owner: TableOwner): Boolean = synchronized(tables.values.exists(_.owner eq owner))

  def state(table: LiveTable): Ownership = synchronized(tables.get(table).fold[Ownership](Closed)(_.state))

  /** An open of `owner` begins to use the table; false where it is not the owner's any more. */
  def enter(table: LiveTable, owner: TableOwner): Boolean = synchronized {
    owner.stoppedUntil = Long.MinValue
    tables.get(table).exists(entry => (entry.owner eq owner) && apply(table, entry, Enter))
  }

  /**
   * A table that holds `content`, now of `taker` and in use; none where there is none to be had. Its last owner opens
   * its version anew if it is used again.
   *
   * @param fits whether the taker may have use for a table
   */
  def take(key: StoreKey, content: String, taker: TableOwner, fits: LiveTable => Boolean = _ => true)
      : Option[LiveTable] = {
    val candidates = synchronized {
      tables.collect { case (table, entry) if entry.key.contains(key) && fits(table) => table }.toSeq
    }
    candidates.reverseIterator.find { table =>
      table.synchronized {
        table.canGive(content) && {
          val previous = synchronized {
            tables.get(table).filter(entry => (entry.owner ne taker) && apply(table, entry, Take)).map { entry =>
              val previous = entry.owner
              entry.owner = taker
              if (taker.isClosed) entry.state = Leaving
              lastOf(previous)
            }
          }
          previous.flatten.foreach(_.leftAll())
          previous.isDefined
        }
      }
    }.map { table =>
      logInfo(s"Took over the table of $key at version ${table.at.version}")
      table
    }
  }

  /** `owner` is closed: what nothing uses is given up at once, the rest when its last open ends. Waits for no store. */
  def leave(owner: TableOwner): Unit = {
    val left = synchronized {
      owner.isClosed = true
      val mine = tables.toSeq.filter(_._2.owner eq owner)
      mine.foreach { case (table, entry) => apply(table, entry, Leave) }
      mine.map(_._1)
    }
    if (left.isEmpty) owner.leftAll() else left.foreach(table => table.synchronized(table.rest()))
  }

  /** Nothing uses the table. Under the table's monitor. */
  def rest(table: LiveTable): Unit = {
    var over = false
    val last = synchronized {
      tables.get(table).filter(entry => apply(table, entry, Rest) && (entry.state eq Parked)).flatMap { entry =>
        val owner = entry.owner
        entry.owner = null
        if (entry.key.isDefined && owner.stayMs > 0 && table.at.content != Attempts.Empty) {
          entry.until = nowMs() + owner.stayMs
          wakeAfter(entry.until)
        } else over = apply(table, entry, Evict)
        lastOf(owner)
      }
    }
    if (over) table.close()
    last.foreach(_.leftAll())
  }

  /** Parks a table that was taken and was not entered. */
  def giveBack(table: LiveTable): Unit = {
    synchronized(tables.get(table).foreach(entry => apply(table, entry, Leave)))
    table.synchronized(table.rest())
  }

  /** Closes a table for good: its rows are wrong, or its owner has another one. */
  def drop(table: LiveTable): Unit = {
    val last = synchronized {
      tables.get(table).flatMap { entry =>
        apply(table, entry, Drop)
        lastOf(entry.owner)
      }
    }
    table.synchronized(table.close())
    last.foreach(_.leftAll())
  }

  /** After an open that failed: what nothing uses may give way. */
  def restAll(owner: TableOwner): Unit =
    synchronized(tables.collect { case (table, entry) if entry.owner eq owner => table }.toSeq)
      .foreach(table => table.synchronized(table.rest()))

  /** Tables of a pool that nothing uses and that stand on another state, least recently used first. */
  def layeredAtRest(pool: PagePool): Seq[LiveTable] = synchronized {
    tables.collect {
      case (table, entry)
          if table.isLayered && table.isOf(pool) && ((entry.state eq Idle) || (entry.state eq Parked)) => table
    }.toSeq
  }

  // ---- what ends a table's stay

  /** Closes the parked tables whose time is over. */
  def expire(): Unit = {
    val now = nowMs()
    while (evict(entry => (entry.state eq Parked) && entry.until <= now).isDefined) ()
  }

  /** A timer is due: most tables that were parked when it was set have been taken over since. */
  private def wake(at: Long): Unit =
    try expire()
    finally synchronized {
        wakes -= at
        tables.valuesIterator.filter(_.state eq Parked).map(_.until).minOption.foreach(wakeAfter)
      }

  /** A table of the store is loaded: closes the parked ones, whose rows would be in memory beside its own. */
  def evictOf(store: StoreKey): Unit =
    while (evict(entry => (entry.state eq Parked) && entry.key.contains(store)).isDefined) ()

  /**
   * Memory is short: closes one table, the least recently used of those that are parked, else one of a query that has
   * stopped. Whether there was one. Tables in use are left alone, and none of them is waited for. Who holds a table's lock,
   * as row calls do, does not wait for the driver either, and goes by what that said last.
   *
   * @param fits whether closing a table is of use
   * @param asks whether the driver may be asked, of each idle store
   */
  def evictOne(fits: LiveTable => Boolean = _ => true, asks: Boolean = true): Boolean = {
    val evicted = evict(_.state eq Parked, fits).orElse {
      val isRowCall = !asks || synchronized(tables.keysIterator.exists(Thread.holdsLock(_)))
      if (isRowCall) askLater()
      val stopped: TableOwner => Boolean = if (isRowCall) isKnownStopped else ask
      idleOwners.iterator.filter(stopped)
        .flatMap(owner => evict(entry => (entry.state eq Idle) && (entry.owner eq owner), fits)).nextOption()
    }
    evicted.foreach(_.awaitReaders())
    evicted.isDefined
  }

  /** Memory gets short: asks the driver, on a thread of its own and not too often, which queries have stopped. */
  def askLater(): Unit = {
    val now = nowMs()
    val due = synchronized {
      val due = !asking && now >= nextAsk
      if (due) {
        asking = true
        nextAsk = now + TableRegistry.AskAgainMs
      }
      due
    }
    if (due) DaemonThreads.guarded("Asking which queries have stopped") {
      try DaemonThreads.start("lamina-stopped") {
          try idleOwners.foreach(ask)
          finally synchronized { asking = false }
        }
      catch { case error: Throwable => synchronized { asking = false }; throw error }
      ()
    }
  }

  private def idleOwners: Seq[TableOwner] =
    synchronized(tables.values.filter(_.state eq Idle).map(_.owner).toSeq.distinct)

  private def isKnownStopped(owner: TableOwner): Boolean = synchronized(nowMs() < owner.stoppedUntil)

  /** Asks the driver, and remembers what it says. */
  private def ask(owner: TableOwner): Boolean = {
    val stopped = owner.isStopped
    synchronized { owner.stoppedUntil = if (stopped) nowMs() + TableRegistry.KnownMs else Long.MinValue }
    stopped
  }

  /** Closes the least recently used table that fits, if there is one. */
  private def evict(condition: Entry => Boolean, fits: LiveTable => Boolean = _ => true): Option[LiveTable] = {
    val evicted = synchronized {
      tables.find { case (table, entry) => condition(entry) && fits(table) }.filter { case (table, entry) =>
        apply(table, entry, Evict)
      }
        .map { case (table, entry) => (table, lastOf(entry.owner)) }
    }
    evicted.map { case (table, last) =>
      table.synchronized(table.close())
      last.foreach(_.leftAll())
      table
    }
  }

  // ---- parts, under the lock

  /** Sees to it that tables expire soon after a time. */
  private def wakeAfter(until: Long): Unit = {
    val at = until + 1
    if (wakes.headOption.forall(at < _)) {
      later(at - nowMs(), () => wake(at))
      wakes += at
    }
  }

  /** The owner, if it was closed or serves no other task, and has no table any more. */
  private def lastOf(owner: TableOwner): Option[TableOwner] =
    Option(owner).filter(owner => (owner.isClosed || owner.endsWithTask) && !tables.values.exists(_.owner eq owner))

  /** Performs a transition; false where the state does not allow it. */
  private def apply(table: LiveTable, entry: Entry, action: OwnershipAction): Boolean =
    TableRegistry.transitions.get((entry.state, action)) match {
      case None => false
      case Some(next) =>
        entry.state = next
        tables.remove(table)
        // at the end: it is the one used last
        if (next ne Closed) tables(table) = entry
        true
    }
}

object TableRegistry {
  import Ownership._
  import OwnershipAction._

  /** Between two rounds of questions to the driver, and how long its answers count. */
  private val AskAgainMs = 5000L
  private val KnownMs = 15000L

  /** That of this JVM. */
  val ofExecutor = new TableRegistry(
    () => TimeUnit.NANOSECONDS.toMillis(System.nanoTime()),
    (milliseconds, work) => Timer.after(milliseconds)(work())
  )

  /** (state, action) → next state; what is not here does not happen. A leaving table that rests may be closed at once. */
  private[lamina] val transitions: Map[(Ownership, OwnershipAction), Ownership] = Map(
    (InUse, Enter) -> InUse,
    (InUse, Rest) -> Idle,
    (InUse, Leave) -> Leaving,
    (InUse, Take) -> InUse,
    (InUse, Drop) -> Closed,
    (Idle, Enter) -> InUse,
    (Idle, Rest) -> Idle,
    (Idle, Leave) -> Leaving,
    (Idle, Take) -> InUse,
    (Idle, Evict) -> Closed,
    (Idle, Drop) -> Closed,
    (Leaving, Enter) -> Leaving,
    (Leaving, Rest) -> Parked,
    (Leaving, Leave) -> Leaving,
    (Leaving, Take) -> InUse,
    (Leaving, Drop) -> Closed,
    (Parked, Take) -> InUse,
    (Parked, Evict) -> Closed,
    (Parked, Drop) -> Closed
  )

  private final class Entry(var owner: TableOwner, var state: Ownership) {
    var key: Option[StoreKey] = None
    var until = 0L
  }
}
