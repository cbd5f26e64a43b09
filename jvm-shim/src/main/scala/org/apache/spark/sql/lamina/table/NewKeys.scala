package org.apache.spark.sql.lamina.table

import org.apache.spark.util.collection.OpenHashSet

/**
 * The keys of a column family that the open transaction has brought in since a walk began, by their hashes of 64 bits. A key that was
 * there and was removed meanwhile is none of them when it comes again.
 */
private[table] final class NewKeys {
  private var came: OpenHashSet[Long] = _
  private var removed: OpenHashSet[Long] = _

  def isEmpty: Boolean = came == null

  def has(hash: Long): Boolean = came != null && came.contains(hash)

  /** A key has come, or has gone. */
  def learn(hash: Long, isThere: Boolean): Unit =
    if (isThere) {
      if (removed == null || !removed.contains(hash)) {
        if (came == null) came = new OpenHashSet[Long](16)
        came.add(hash)
      }
    } else if (!has(hash)) {
      if (removed == null) removed = new OpenHashSet[Long](16)
      removed.add(hash)
    }
}

/**
 * Which keys came and went in a transaction, for walks of a column family that go on meanwhile: they learn it from the undo log, and
 * where that is given up since its changes were put on the disk, from what is noted of it before. Not thread-safe.
 */
private[table] final class KeyChanges(isTombstone: Long => Boolean) {
  import KeyChanges._

  private var transaction = 0
  private var walks = 0
  private var noted = List.empty[Noted]

  /** Entries of the undo log that changed nothing: they brought a key back from the disk. */
  private var brought: java.util.BitSet = _

  /** A walk begins, in the transaction that is said. */
  def begin(): Int = {
    walks += 1
    transaction
  }

  /** A walk ends that began in a transaction. */
  def end(begun: Int): Unit = if (begun == transaction) walks -= 1

  /** The last entry of the undo log has brought a key back. */
  def broughtBack(undo: LongLog): Unit = {
    if (brought == null) brought = new java.util.BitSet
    brought.set(undo.size - 1)
  }

  /** The undo log is given up in the middle of a transaction; `next` takes its place. */
  def giveUp(undo: LongLog, next: LongLog): Unit = {
    if (walks > 0) {
      val changes = new Noted(undo, next)
      foreach(undo, 0, brought) { (entry, key, length, came) =>
        changes.add(entry, KeyHash.hash(null, key, length), came)
      }
      noted ::= changes
    }
    brought = null
  }

  /** The transaction ends: walks that go on are of what it has committed. */
  def ended(): Unit = {
    transaction += 1
    walks = 0
    brought = null
    noted = Nil
  }

  /**
   * Tells a walk of changes since an entry of a log, of keys that it has not passed.
   *
   * @return the log that it goes on with; null where its transaction has ended
   */
  def tell(keys: NewKeys, walk: FamilyCursor, log: LongLog, from: Int, undo: LongLog): LongLog = {
    var (at, first) = (log, from)
    while (at != null && (at ne undo)) {
      val changes = noted.find(_.log eq at)
      changes.foreach(_.tell(keys, first))
      at = changes.fold[LongLog](null)(_.next)
      first = 0
    }
    if (at != null)
      foreach(undo, first, brought) { (_, key, length, came) =>
        if (!walk.hasPassed(key, length)) keys.learn(KeyHash.hash(null, key, length), came)
      }
    at
  }

  /** Number, key and its length of each entry by which a key came or went. */
  private def foreach(
      log: LongLog,
      from: Int,
      but: java.util.BitSet
  )(visit: (Int, Long, Int, Boolean) => Unit): Unit = {
    var entry = from
    while (entry < log.size) {
      val (before, after) = (log.first(entry), log.second(entry))
      val wasAbsent = before == 0L || (before & 1L) != 0L || isTombstone(before)
      val isAbsent = after == 0L || isTombstone(after)
      if (wasAbsent != isAbsent && (but == null || !but.get(entry))) {
        val named = if (after != 0L) after else before & ~1L
        visit(entry, Rows.keyAddress(named), Rows.keyLength(named), !isAbsent)
      }
      entry += 1
    }
  }
}

private object KeyChanges {

  /** What a log said, by the numbers of its entries. */
  private final class Noted(val log: LongLog, val next: LongLog) {
    private var count = 0
    private var entries = new Array[Int](64)
    private var hashes = new Array[Long](64)
    private val came = new java.util.BitSet

    def add(entry: Int, hash: Long, isThere: Boolean): Unit = {
      if (count == entries.length) {
        entries = java.util.Arrays.copyOf(entries, 2 * count)
        hashes = java.util.Arrays.copyOf(hashes, 2 * count)
      }
      entries(count) = entry
      hashes(count) = hash
      if (isThere) came.set(count)
      count += 1
    }

    def tell(keys: NewKeys, from: Int): Unit = {
      var i = 0
      while (i < count) {
        if (entries(i) >= from) keys.learn(hashes(i), came.get(i))
        i += 1
      }
    }
  }
}
