package org.apache.spark.sql.lamina

import java.util.concurrent.TimeUnit

import scala.collection.mutable

import org.apache.spark.internal.Logging

/**
 * Which store a table belongs to, whatever provider or run has it: the checkpoint's uuid and the store within it.
 */
final case class StoreKey(checkpoint: String, operator: Long, partition: Int, name: String)

/**
 * Hands the table of a store from one provider to the next, so that a query that restarts in this JVM, or that unloads
 * its stores after each task, loads nothing.
 *
 * Rules:
 *   1. Only a streaming open takes a table, and only for the same checkpoint, store and content, or where the content is
 *      the one that the table can step back to.
 *   1. Only from a provider without an open transaction and without a commit that may still fail. The provider that had
 *      it opens its version anew if it is used again.
 *   1. A table whose provider was closed stays for `heap.handOverMs`; memory pressure ends its stay, and so does an open
 *      of its store that cannot use it and loads another one.
 *
 * The table's own lock decides who has it.
 */
object TableLease extends Logging {
  private final case class Parked(until: Long)

  /** Has a provider. */
  private val InUse = Parked(Long.MaxValue)

  private val tables = mutable.HashMap.empty[StoreKey, mutable.LinkedHashMap[LiveTable, Parked]]

  /** Makes a table of a streaming query known. */
  def register(key: StoreKey, live: LiveTable): Unit = synchronized {
    tables.getOrElseUpdate(key, mutable.LinkedHashMap.empty).getOrElseUpdate(live, InUse)
  }

  /**
   * A table that holds `content`, now owned by `taker`; none where there is none to be had.
   *
   * A table stops being parked before it gets its owner: so `releaseMemory`, which runs under the lock of a table in
   * use, never waits for another one in use.
   */
  def take(key: StoreKey, content: String, taker: AnyRef): Option[LiveTable] = {
    val mark = Parked(InUse.until)
    val candidates = synchronized {
      val known = tables.get(key).fold(Seq.empty[(LiveTable, Parked)])(_.toSeq)
      known.foreach { case (live, _) => tables(key)(live) = mark }
      known
    }
    val taken = candidates.map(_._1).find { live =>
      live.synchronized {
        val fits = !live.closed && !live.isBusy && (live.owner ne taker) &&
          (live.at.content == content || live.oneBack.exists(_.content == content))
        if (fits) live.owner = taker
        fits
      }
    }
    synchronized {
      taken.foreach(live => tables.get(key).foreach(_.update(live, InUse)))
      // Only what nobody has parked meanwhile.
      for ((live, parked) <- candidates if !taken.contains(live); known <- tables.get(key)) {
        if (known.get(live).exists(_ eq mark)) known(live) = parked
      }
    }
    taken.foreach(live => logInfo(s"Took over the table of $key at version ${live.synchronized(live.at.version)}"))
    taken
  }

  /** Keeps a table whose provider was closed for a while. The caller has made it ownerless. */
  def park(key: StoreKey, live: LiveTable, forMs: Long): Unit =
    if (forMs <= 0) drop(key, live)
    else {
      synchronized {
        tables.getOrElseUpdate(key, mutable.LinkedHashMap.empty).update(live, Parked(nowMs() + forMs))
      }
      Timer.after(forMs + 1)(expire())
    }

  /** Closes the parked tables whose time is over. */
  def expire(): Unit = closeParked((_, parked) => parked.until <= nowMs())

  /** Memory is short: closes every parked table. Tables that are in use are left alone. */
  def releaseMemory(): Unit = closeParked((_, parked) => parked != InUse)

  /** A table of the store is loaded: closes the parked ones, whose rows would be in memory beside its own. */
  def releaseOf(store: StoreKey): Unit = closeParked((key, parked) => key == store && parked != InUse)

  /** Closes a table for good. */
  def drop(key: StoreKey, live: LiveTable): Unit = {
    forget(key, live)
    live.synchronized(live.close())
  }

  def forget(key: StoreKey, live: LiveTable): Unit = synchronized {
    tables.get(key).foreach { known =>
      known.remove(live)
      if (known.isEmpty) tables.remove(key)
    }
  }

  private def closeParked(condition: (StoreKey, Parked) => Boolean): Unit = {
    val over = synchronized {
      for ((key, known) <- tables.toSeq; (live, parked) <- known.toSeq if condition(key, parked)) yield (key, live)
    }
    over.foreach { case (key, live) =>
      val closed = live.synchronized {
        val free = live.owner == null && !live.isBusy
        if (free) live.close()
        free
      }
      if (closed) forget(key, live)
    }
  }

  private def nowMs(): Long = TimeUnit.NANOSECONDS.toMillis(System.nanoTime())
}
