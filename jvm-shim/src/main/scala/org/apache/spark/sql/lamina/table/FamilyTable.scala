package org.apache.spark.sql.lamina.table

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/**
 * The rows of one column family: hash index, pages, ordered keys, and the undo logs of the open and of the last transaction.
 *
 * An undo entry is (state of the key before, new row). The state before is 0 where the key was absent, else the row's
 * address, with the lowest bit set where the row was removed in the same transaction. The new row is 0 for a removal.
 * Entries name keys by their rows, not by slots, so the index may grow and rows may move at any time.
 *
 * A family that is ''layered'' holds what differs from the state below, and rows that were read from there. A key that it does
 * not know is read before anything is done to it, so that counts and undo are exact. A removed key keeps a tombstone in its slot,
 * which is a row like others: no slot is marked as removed, and no state before is 0 but of keys that are not below.
 * A family of a layered table may be ''held'': all of its rows are here, as in a table that stands on nothing.
 *
 * Not thread-safe. Called by [[StoreTable]] and by the provider under the store's lock.
 */
final class FamilyTable private[table] (
    val id: Int,
    val ordered: Boolean,
    val multiValue: Boolean,
    pool: PagePool,
    resting: Resting,
    layer: Layer = null,
    room: Layer = null
) {
  import HashIndex.{isRemoved, rowOf}

  private val index = new HashIndex(pool)
  private val pages =
    new FamilyPages(pool, resting, if (multiValue) FamilyPages.DeadListPercent else FamilyPages.DeadPercent)
  private val layered = layer != null

  /** All keys of an ordered family that is not layered, and of a layered one those that scans need. */
  private val keys = if (ordered && !layered) new OrderedKeys(pool) else null
  private val labelled = if (layered) new LabelledKeys(pool, index, layer) else null
  private var undo = new LongLog(pool)
  private var previous = new LongLog(pool)
  private var baseRows: BaseRows = _
  private val counts = new RowCounts
  private val lists = new ListBuffers(pages, pool, multiValue)
  private val reclaim = new PageReclaim(index, pages, lists, multiValue)
  private val spilled = if (layered) new FamilySpill(id, index, lists, labelled, counts, layer) else null
  private var transient: TransientRow = _

  /** What walks that go on in a transaction have to know of it. */
  private[table] val walks = new KeyChanges(row => live(row) == 0L)

  private[table] def undoLog: LongLog = undo

  private[table] def tellWalk(keys: NewKeys, walk: FamilyCursor, log: LongLog, from: Int): LongLog =
    walks.tell(keys, walk, log, from, undo)

  /** Fills an empty column family. */
  private[lamina] val filling = new FamilyFill(id, index, lists, keys, counts, pool, layer)

  /** Whether rows are good only until the next call, so that who hands them out copies them. */
  def rowsMayGo: Boolean = room != null

  /** Whether rows that are the same below may be forgotten. */
  private[lamina] def forgets: Boolean = layered

  def rows: Long = counts.rows

  def keyValueBytes: Long = counts.bytes

  /** The row of a key as the open transaction sees it, or 0. The caller's readers may keep it and its value's address. */
  def get(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    val row = find(keyBase, keyOffset, keyLength)
    if (row == 0L) 0L else handOut(row)
  }

  /** The same row; until the transaction ends its value's address is good no longer than the store's lock is held. */
  def find(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    val hash = KeyHash.hash(keyBase, keyOffset, keyLength)
    val word = index.find(hash, keyBase, keyOffset, keyLength)
    val there = if (onDisk(word)) spilled.find(keyBase, keyOffset, keyLength) else FamilyTable.Unknown
    if (there != FamilyTable.Unknown) there
    else if (mayBeBelow(word)) findBelow(hash, keyBase, keyOffset, keyLength)
    else if (word == 0L || isRemoved(word)) 0L
    else live(rowOf(word))
  }

  /**
   * The row of a key in the version that the open transaction is based on, or 0. Of a layered family it is good until the next call.
   * Nothing is changed by it: others may ask while a writer sends.
   */
  def getBase(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    val word = index.find(KeyHash.hash(keyBase, keyOffset, keyLength), keyBase, keyOffset, keyLength)
    if (word != 0L || !layered || layer.below == null) base(word)
    else {
      val value = layer.below.get(id, keyBase, keyOffset, keyLength)
      if (value == null) 0L else transientOf(keyBase, keyOffset, keyLength, value)
    }
  }

  /** The row as a key of the table is there, 0 where it is absent; [[FamilyTable.Unknown]] where only the state below says. */
  private[table] def held(keyBase: AnyRef, keyOffset: Long, keyLength: Int, inBase: Boolean): Long = {
    val word = index.find(KeyHash.hash(keyBase, keyOffset, keyLength), keyBase, keyOffset, keyLength)
    if (word == 0L || !inBase && onDisk(word) && spilled.entry(keyBase, keyOffset, keyLength) != null)
      FamilyTable.Unknown
    else if (!inBase) live(rowOf(word))
    else base(word)
  }

  /** Whether the open transaction may have put a key, whose slot has `word`, on the disk: then that is what it sees. */
  private def onDisk(word: Long): Boolean = layered && spilled.isOn && (word == 0L || !Rows.isOwn(rowOf(word)))

  private def mayBeBelow(word: Long): Boolean = word == 0L && layered && layer.below != null

  /**
   * Makes a row of what is below, as if it had always been there; false where the key is absent. Afterwards the slot is looked for
   * anew.
   */
  private def readBelow(hash: Long, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Boolean = {
    val value = layer.read(id, keyBase, keyOffset, keyLength)
    value != null && {
      makeRoom(keyLength + value.length)
      keep(value, hash, keyBase, keyOffset, keyLength)
      true
    }
  }

  /** The same for who only reads: where memory is short the row is not kept, and good until the next call. */
  private def findBelow(hash: Long, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    val value = layer.read(id, keyBase, keyOffset, keyLength)
    if (value == null) 0L
    else {
      val kept =
        if (layer.keepsNone()) 0L
        else {
          makeRoom(keyLength + value.length)
          try PagePool.inBackground(keep(value, hash, keyBase, keyOffset, keyLength))
          catch {
            case error: LaminaError if error.kind == LaminaError.MemoryCap =>
              layer.keepNone()
              0L
          }
        }
      if (kept != 0L) kept else transientOf(keyBase, keyOffset, keyLength, value)
    }
  }

  private def keep(value: Array[Byte], hash: Long, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    index.ensure(hash)
    val row = lists.create(keyBase, keyOffset, keyLength, value.length, 0)
    Platform.copyMemory(value, Platform.BYTE_ARRAY_OFFSET.toLong, null, Rows.valueAddress(row), value.length)
    index.find(hash, keyBase, keyOffset, keyLength)
    index.insert(hash, row, removed = false)
    row
  }

  private def transientOf(keyBase: AnyRef, keyOffset: Long, keyLength: Int, value: Array[Byte]): Long = {
    if (transient == null) transient = new TransientRow
    transient.of(keyBase, keyOffset, keyLength, value)
  }

  /** Gives back what large rows took that are in no table. */
  private[table] def restTransient(): Unit = {
    if (transient != null) transient.rest()
    if (spilled != null) spilled.restTransient()
  }

  /**
   * Where memory is short, forgets some rows that are on the disk, too, or has the open transaction's changes put there. Not while an
   * address of a row is in hand.
   */
  private def makeRoom(bytes: Int): Unit = if (room != null) room.makeRoom(bytes)

  /** After a change failed, having tried so many of `Layer.refused`'s steps: gives memory up, so that it is to be done again, or fails. */
  private def refused(error: LaminaError, step: Int): Int = {
    val next = if (room == null || error.kind != LaminaError.MemoryCap) -1 else room.refused(step)
    if (next < 0) throw error
    next
  }

  private def live(row: Long): Long = if (layered && Rows.isTombstone(row)) 0L else row

  def put(
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    var step = 0
    while (step >= 0)
      try {
        putOnce(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
        step = -1
      } catch { case error: LaminaError => step = refused(error, step) }
  }

  private def putOnce(
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    makeRoom(keyLength + valueLength)
    val hash = KeyHash.hash(keyBase, keyOffset, keyLength)
    undo.ensure()
    index.ensure(hash)
    val word = toChange(hash, keyBase, keyOffset, keyLength)
    if (word == 0L || isAbsent(word) || !overwrite(rowOf(word), valueBase, valueOffset, valueLength))
      insert(hash, word, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength, 0)
  }

  /** Appends encoded elements to a key's value, which is empty where the key is absent. */
  def append(
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    var step = 0
    while (step >= 0)
      try {
        appendOnce(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
        step = -1
      } catch { case error: LaminaError => step = refused(error, step) }
  }

  private def appendOnce(
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    makeRoom(keyLength + valueLength)
    val hash = KeyHash.hash(keyBase, keyOffset, keyLength)
    undo.ensure()
    index.ensure(hash)
    val word = toChange(hash, keyBase, keyOffset, keyLength)
    if (word == 0L || isAbsent(word)) {
      // Put again after a removal it replaces what the base has; else it appends to nothing.
      val removed = word != 0L && Rows.has(rowOf(word), if (layered) Rows.Own else Rows.Removed)
      val replaces = removed && !isFreshOwn(rowOf(word))
      val flags = if (replaces) 0 else Rows.Appended
      insert(hash, word, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength, flags)
    } else if (valueLength > 0) {
      val old = rowOf(word)
      val own = Rows.has(old, Rows.Own)
      if (own && lists.extend(old, valueBase, valueOffset, valueLength)) counts.bytes += valueLength
      else {
        val appended = if (!own || Rows.has(old, Rows.Appended)) Rows.Appended else 0
        val base = if (own) Rows.listBase(old) else Rows.valueLength(old)
        replace(hash, word, lists.append(old, base, Rows.Own | appended, valueBase, valueOffset, valueLength))
      }
    }
  }

  /** Removes a key; false where it was absent. */
  def remove(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Boolean = {
    var (step, wasThere) = (0, false)
    while (step >= 0)
      try {
        wasThere = removeOnce(keyBase, keyOffset, keyLength)
        step = -1
      } catch { case error: LaminaError => step = refused(error, step) }
    wasThere
  }

  private def removeOnce(keyBase: AnyRef, keyOffset: Long, keyLength: Int): Boolean = {
    makeRoom(keyLength)
    undo.ensure()
    val hash = KeyHash.hash(keyBase, keyOffset, keyLength)
    val word = toChange(hash, keyBase, keyOffset, keyLength)
    if (word == 0L || isAbsent(word)) false
    else if (layered) {
      replace(hash, word, lists.tombstone(keyBase, keyOffset, keyLength, Rows.Own))
      true
    } else {
      val row = rowOf(word)
      index.update(row, removed = true)
      Rows.setFlags(row, Rows.Removed)
      undo.add(row, 0L)
      counts.remove(row)
      true
    }
  }

  /**
   * The slot's word of a key that is to be changed, after it was read from below or from the disk where that knows it; 0 where it is
   * absent everywhere.
   */
  private def toChange(hash: Long, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Long = {
    val word = index.find(hash, keyBase, keyOffset, keyLength)
    val entry = if (onDisk(word)) spilled.entry(keyBase, keyOffset, keyLength) else null
    // the base's row is there before that of the transaction, as always
    val isRead = mayBeBelow(word) && (entry == null || !Spilled.isFresh(entry)) &&
      readBelow(hash, keyBase, keyOffset, keyLength)
    if (entry != null) {
      spilled.bringBack(entry, hash, keyBase, keyOffset, keyLength, undo)
      walks.broughtBack(undo)
    }
    if (isRead || entry != null) {
      // what was read may have made another log
      undo.ensure()
      index.find(hash, keyBase, keyOffset, keyLength)
    } else word
  }

  private def isAbsent(word: Long): Boolean = isRemoved(word) || layered && Rows.isTombstone(rowOf(word))

  /** Finds what a scan goes by, where it is not kept: may take memory, and give up that of others for it, as a change may. */
  private[table] def findKeys(): Unit = if (layered) {
    labelled.all
    ()
  }

  /**
   * All rows, in no order. Rows that come while it runs may be seen, but none where there were none at its start: Spark asks that of
   * a provider that it does not know.
   */
  def scan(startsAtBase: Boolean): RowCursor = scan(startsAtBase, if (layered) layer.scanned else null)

  /** The same; `transient` gets rows of a layered family that are not in the table. */
  private[table] def scan(startsAtBase: Boolean, transient: TransientRow): RowCursor =
    if (layered) new LayeredCursor(this, labelled, layer, transient, null, null, startsAtBase, passesNew = false)
    else new ScanCursor(this, index, startsAtBase)

  /** Each row whose key's hash is in a part of the hashes; reads no more of the index than holds that part. */
  private[table] def foreachIn(part: Int, parts: Int)(visit: Long => Unit): Unit = if (rows > 0) {
    val buffer = new HashIndex.WordBuffer
    var prefix = KeyHash.first(part, parts)
    var more = true
    while (more) {
      prefix = index.copySegment(prefix, buffer)
      var i = 0
      while (i < buffer.count) {
        val word = buffer.words(i)
        if (word != 0L && word != HashIndex.Tombstone && !isRemoved(word)) {
          val row = rowOf(word)
          val hash = KeyHash.hash(null, Rows.keyAddress(row), Rows.keyLength(row))
          if (KeyHash.part(hash, parts) == part && live(row) != 0L) visit(row)
        }
        i += 1
      }
      more = prefix != 0L && KeyHash.part(prefix, parts) == part
    }
  }

  /**
   * Rows with from ≤ key < until in unsigned byte order; null leaves a side open. Those whose keys come while it runs are not seen,
   * as in Spark's RocksDB, the only provider that has ranges.
   */
  def range(from: Array[Byte], until: Array[Byte], startsAtBase: Boolean): RowCursor = {
    if (!ordered) throw new IllegalArgumentException(s"column family $id keeps no order")
    if (layered) new LayeredCursor(this, labelled, layer, layer.scanned, from, until, startsAtBase, !startsAtBase)
    else new RangeCursor(this, keys, from, until, startsAtBase)
  }

  // ---- transaction, called by StoreTable

  private[table] def dropAll(): Unit = {
    val cursor = scan(startsAtBase = false)
    var row = cursor.next()
    while (row != 0L) {
      // the row itself may be forgotten meanwhile
      val key = new Array[Byte](Rows.keyLength(row))
      Platform.copyMemory(null, Rows.keyAddress(row), key, Platform.BYTE_ARRAY_OFFSET.toLong, key.length)
      remove(key, Platform.BYTE_ARRAY_OFFSET.toLong, key.length)
      row = cursor.next()
    }
  }

  /** Each key whose state differs from the base once; stops early when `visit` says false. */
  private[table] def foreachChange(visit: (Byte, Long) => Boolean): Unit = {
    var i = 0
    var go = true
    // of its own: who reads the base meanwhile has another one
    val bases = if (layered) new BaseRows(undo, pool) else null
    try while (go && i < undo.size) {
        val row = undo.second(i)
        val before = undo.first(i)
        if (row != 0L) {
          if (!Rows.has(row, Rows.Superseded | Rows.Removed) && !sameAsBase(before, row, bases)) {
            val op = if (layered && Rows.isTombstone(row)) Ops.Delete
            else if (Rows.has(row, Rows.Appended)) Ops.Append else Ops.Put
            go = visit(op, row)
          }
        } else if (!Rows.has(before, Rows.Superseded) && !isFreshOwn(before)) {
          go = visit(Ops.Delete, before)
        }
        i += 1
      }
    finally if (bases != null) bases.close()
  }

  /** Adds what the last transaction left of each key that it touched: its row, or that there is none. While none is open. */
  private[table] def addLastTo(digest: Digest): Unit = {
    var i = 0
    while (i < previous.size) {
      val after = previous.second(i)
      val named = if (after != 0L) after else previous.first(i) & ~1L
      val key = Rows.keyAddress(named)
      val length = Rows.keyLength(named)
      val word = index.find(KeyHash.hash(null, key, length), null, key, length)
      // A key's last entry is the one whose row the index has; of a removal it may have forgotten the row.
      val isGone = word == 0L || isRemoved(word)
      if (isGone == (after == 0L) && (word == 0L || rowOf(word) == named)) {
        if (isGone || layered && Rows.isTombstone(named)) digest.add(id, Ops.Delete, key, length, 0L, 0)
        else digest.add(id, Ops.Put, key, length, Rows.valueAddress(named), Rows.valueLength(named))
      }
      i += 1
    }
  }

  private[table] def commit(): Unit = {
    lists.share(undo)
    lists.rest(this, resting)
    dropPrevious()
    var i = 0
    while (i < undo.size) {
      val row = undo.second(i)
      val before = undo.first(i)
      if (row != 0L) Rows.clearFlags(row, TransactionFlags)
      if (before != 0L && (before & 1L) == 0L) {
        Rows.clearFlags(before, TransactionFlags)
        Rows.setFlags(before, Rows.Held)
      }
      i += 1
    }
    previous = undo
    undo = new LongLog(pool)
    walks.ended()
    closeBaseRows()
    if (layered) {
      if (spilled.commit()) shrink()
      labelled.ended()
    }
  }

  private[table] def abort(): Unit = {
    lists.rest(this, resting)
    rewind(undo)
    resting.add(this, undo, newRows = true)
    undo = new LongLog(pool)
    walks.ended()
    closeBaseRows()
    if (layered) spilled.abort()
  }

  private[table] def stepBack(): Unit = {
    rewind(previous)
    resting.add(this, previous, newRows = true)
    previous = new LongLog(pool)
  }

  /** Changes of the open transaction that are not on the disk. */
  private[table] def changes: Int = undo.size

  /** Puts what the open transaction changed on the disk. */
  private[table] def writeSpill(): Unit = spilled.write(undo)

  /** Afterwards: has the table what the base has. Nobody has a row in hand, since those of a layered family are copied. */
  private[table] def endSpill(): Unit = {
    val next = new LongLog(pool)
    walks.giveUp(undo, next)
    lists.rest(this, resting)
    closeBaseRows()
    spilled.takeBack(rewind(undo))
    freeRows(undo, newRows = true, 0, undo.size)
    undo.close()
    undo = next
    shrink()
  }

  /** Afterwards, when they are below: forgets them. */
  private[table] def dropBase(): Unit = {
    foreachDiffering { row =>
      index.findKeyOf(row)
      index.erase()
      labelled.remove(row)
      lists.free(row)
    }
    shrink()
  }

  /** Gives memory back that rows needed which are on the disk now. */
  private def shrink(): Unit = {
    index.shrink()
    pages.discardCurrent()
  }

  /** Rows of the base that differ from the state below, where the open transaction has changed none. */
  private[table] def foreachDiffering(visit: Long => Unit): Unit = index.foreachRow { row =>
    val label = Rows.label(row)
    if (label != 0 && !layer.labels.clean(label)) visit(row)
  }

  /** What the open transaction has on the disk; stops early when `visit` says false, and says so then. */
  private[table] def foreachSpilled(visit: (Array[Byte], Array[Byte]) => Boolean): Boolean = spilled.foreach(visit)

  /** Takes a transaction back; the rows that it made are kept for those who read them. */
  private def rewind(log: LongLog): Unit = {
    var i = log.size - 1
    while (i >= 0) {
      val before = log.first(i)
      val after = log.second(i)
      val named = if (after != 0L) after else before & ~1L
      val key = Rows.keyAddress(named)
      val length = Rows.keyLength(named)
      val hash = KeyHash.hash(null, key, length)
      val word = index.find(hash, null, key, length)
      if (word != 0L && !isAbsent(word)) counts.remove(rowOf(word))
      if (before == 0L) {
        if (word != 0L) index.erase()
        removeKey(named)
      } else {
        val row = before & ~1L
        val removed = (before & 1L) != 0L
        if (layered && Rows.label(row) == 0) removeKey(named)
        if (word == 0L) {
          index.ensure(hash)
          index.find(hash, null, key, length)
          index.insert(hash, row, removed)
          addKey(named)
        } else index.update(row, removed)
        if (removed) Rows.clearFlags(row, Rows.Superseded)
        else {
          Rows.clearFlags(row, Rows.Superseded | Rows.Removed | Rows.Held)
          if (live(row) != 0L) counts.add(row)
        }
      }
      if (after != 0L) Rows.setFlags(after, Rows.Held)
      i -= 1
    }
  }

  /** The rows of a log that has rested: those before its transaction, or the new ones. */
  private[table] def freeRows(log: LongLog, newRows: Boolean, from: Int, until: Int): Unit = {
    var i = from
    while (i < until) {
      val row = if (newRows) log.second(i) else log.first(i)
      if (row != 0L && (row & 1L) == 0L) lists.free(row)
      i += 1
    }
  }

  private[table] def reserve(rows: Long): Unit = index.reserve(rows)

  // ---- what is below

  /** The numbers of rows that a fill cannot count: those of the whole version. */
  private[lamina] def setCounts(rows: Long, bytes: Long): Unit = counts.set(rows, bytes)

  private var broom = 0L

  /**
   * In one part of the index, lets rows that are the same below count as read from there, and forgets tombstones of keys that are
   * not there any more: scans need not look at them. Whether it was the last part since `startSweep`. Between transactions.
   */
  private[table] def sweep(): Boolean = {
    val buffer = new HashIndex.WordBuffer
    broom = index.copySegment(broom, buffer)
    buffer.foreachRow { row =>
      if (Rows.label(row) != 0 && layer.labels.clean(Rows.label(row))) {
        removeKey(row)
        Rows.setLabel(row, 0)
        if (Rows.isTombstone(row)) {
          index.findKeyOf(row)
          index.erase()
          lists.free(row)
        }
      }
    }
    broom == 0L
  }

  private[table] def startSweep(): Unit = broom = 0L

  /** How many calls of `forgetClean` look at all rows, as long as the index does not grow. */
  private[table] def indexParts: Int = index.parts

  /** Forgets all rows that are the same below; the bytes of what went. */
  private[table] def forgetAllClean(): Long = (0 until indexParts).foldLeft(0L)((bytes, _) => bytes + forgetClean())

  /** Where the next look for rows that may go begins: a prefix of hashes. */
  private var hand = 0L

  /**
   * Forgets rows that are the same below, and tombstones of keys that are not there any more, in one part of the index; the
   * bytes of what went. Nobody has them in hand: rows of a layered family are copied before they are handed out.
   */
  private[table] def forgetClean(): Long = {
    val buffer = new HashIndex.WordBuffer
    hand = index.copySegment(hand, buffer)
    var bytes = 0L
    buffer.foreachRow { row =>
      if (!Rows.isOwn(row) && layer.labels.clean(Rows.label(row))) {
        index.findKeyOf(row)
        index.erase()
        if (Rows.label(row) != 0) removeKey(row)
        bytes += Rows.size(row) + (if (Rows.isView(row)) Rows.size(Rows.buffer(row)) else 0L)
        lists.free(row)
      }
    }
    bytes
  }

  // ---- maintenance

  /** Moves the live rows out of the page with the most dead ones; its bytes, or 0 where there is nothing to gain. */
  private[table] def reclaimPage(moved: MovedRows): Long = reclaim.reclaimPage(moved)

  /** Points the undo log of the last transaction at rows that were moved. */
  private[table] def follow(moved: MovedRows): Unit = follow(previous, moved, from = 0, firsts = true, seconds = true)

  /** The same for a log of this column family that rests. */
  private[table] def follow(log: LongLog, moved: MovedRows, from: Int, firsts: Boolean, seconds: Boolean): Unit =
    reclaim.follow(log, moved, from, firsts, seconds)

  /** Bytes that the open transaction wrote elsewhere, as lists outgrew their room. */
  private[table] def leftBytes: Long = lists.leftBytes

  private[table] def deadBytes: Long = pages.deadBytes
  private[table] def liveBytes: Long = pages.usedBytes - pages.deadBytes
  private[table] def pageBytes: Long = pages.pageBytes
  private[table] def indexBytes: Long = index.bytes
  private[table] def undoBytes: Long =
    undo.bytes + previous.bytes + filling.bytes + lists.bytes + (if (baseRows == null) 0L else baseRows.bytes)
  private[table] def orderedBytes: Long =
    (if (keys != null) keys.bytes else 0L) + (if (layered) labelled.bytes else 0L)

  private[table] def close(): Unit = {
    index.close()
    pages.close()
    if (keys != null) keys.close()
    if (layered) labelled.close()
    undo.close()
    previous.close()
    lists.close()
    closeBaseRows()
    filling.close()
    counts.clear()
  }

  /** Drops the undo log of the last transaction: what it removed is gone, what it replaced rests. */
  private[table] def dropPrevious(): Unit = {
    var i = 0
    while (i < previous.size) {
      val before = previous.first(i)
      if (previous.second(i) == 0L && before != 0L && (before & 1L) == 0L) {
        val word = index.findKeyOf(before)
        if (word != 0L && isRemoved(word) && rowOf(word) == before) {
          index.erase()
          removeKey(before)
        }
      }
      i += 1
    }
    resting.add(this, previous, newRows = false)
  }

  private[table] def forgetUndo(): Unit = {
    dropPrevious()
    previous = new LongLog(pool)
  }

  // ---- parts

  private val TransactionFlags =
    Rows.Own | Rows.Read | Rows.Fresh | Rows.Superseded | Rows.Appended | Rows.Removed

  /** Writes a value where it is, or finds it there already; false where a new row is needed. */
  private def overwrite(row: Long, valueBase: AnyRef, valueOffset: Long, valueLength: Int): Boolean = {
    val length = Rows.valueLength(row)
    if (length == valueLength && KeyHash.same(null, Rows.valueAddress(row), valueBase, valueOffset, length)) {
      // An own row that is so far an append of its base stays one: the result is the same.
      true
    } else if (
      !multiValue && (Rows.flags(row) & (Rows.Own | Rows.Read)) == Rows.Own &&
      Rows.padded(length) == Rows.padded(valueLength)
    ) {
      Platform.copyMemory(valueBase, valueOffset, null, Rows.valueAddress(row), valueLength)
      Rows.setValueLength(row, valueLength)
      counts.bytes += valueLength - length
      true
    } else false
  }

  /** A new own row of a key whose slot `find` found with `word`. */
  private def insert(
      hash: Long,
      word: Long,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int,
      flags: Int
  ): Unit = {
    val row = lists.create(keyBase, keyOffset, keyLength, valueLength, Rows.Own | flags)
    Platform.copyMemory(valueBase, valueOffset, null, Rows.valueAddress(row), valueLength)
    replace(hash, word, row)
  }

  /** Puts a new own row into the slot that `find` found with `word`, and logs it. */
  private def replace(hash: Long, word: Long, row: Long): Unit = {
    if (word == 0L) {
      Rows.setFlags(row, Rows.Fresh)
      if (layered) Rows.setLabel(row, layer.labels.current)
      lists.freedUnless(row)(addKey(row))
      index.insert(hash, row, removed = false)
      undo.add(0L, row)
    } else {
      val old = rowOf(word)
      if (layered) {
        Rows.setLabel(row, layer.labels.current)
        if (!Rows.has(old, Rows.Own)) lists.freedUnless(row)(addKey(row))
      }
      if (isRemoved(word)) {
        if (Rows.has(old, Rows.Removed)) {
          if (isFreshOwn(old)) Rows.setFlags(row, Rows.Fresh)
          Rows.setFlags(old, Rows.Superseded)
          undo.add(old | 1L, row)
        } else {
          // Removed by the transaction before this one, whose undo log alone still knows the old row.
          Rows.setFlags(row, Rows.Fresh)
          undo.add(0L, row)
        }
      } else {
        val wasAbsent = live(old) == 0L
        if (Rows.has(old, Rows.Own)) {
          Rows.setFlags(old, Rows.Superseded)
          if (Rows.has(old, Rows.Fresh)) Rows.setFlags(row, Rows.Fresh)
        } else if (wasAbsent) Rows.setFlags(row, Rows.Fresh)
        if (!wasAbsent) counts.remove(old)
        undo.add(old, row)
      }
      index.update(row, removed = false)
    }
    if (live(row) != 0L) counts.add(row)
  }

  private def addKey(row: Long): Unit =
    if (layered) labelled.add(row) else if (keys != null) keys.add(null, Rows.keyAddress(row), Rows.keyLength(row))

  private def removeKey(row: Long): Unit =
    if (layered) labelled.remove(row)
    else if (keys != null) keys.remove(null, Rows.keyAddress(row), Rows.keyLength(row))

  private def closeBaseRows(): Unit = if (baseRows != null) {
    baseRows.close()
    baseRows = null
  }

  private def handOut(row: Long): Long = {
    if ((Rows.flags(row) & (Rows.Own | Rows.Read)) == Rows.Own) Rows.setFlags(row, Rows.Read)
    row
  }

  private def isFreshOwn(row: Long): Boolean = (Rows.flags(row) & (Rows.Own | Rows.Fresh)) == (Rows.Own | Rows.Fresh)

  private def sameAsBase(before: Long, row: Long, bases: BaseRows): Boolean =
    if (layered) sameAsBelow(before, row, bases) else (before & 1L) != 0L && sameValue(before & ~1L, row)

  /** Of a layered family: whether a key is again what it was, after it was removed by the transaction or came with it. */
  private def sameAsBelow(before: Long, row: Long, bases: BaseRows): Boolean =
    if (Rows.isTombstone(row)) Rows.has(row, Rows.Fresh)
    else before != 0L && Rows.has(before, Rows.Own) && Rows.isTombstone(before) && !Rows.has(row, Rows.Fresh) &&
    sameValue(bases.of(row), row)

  private def sameValue(old: Long, row: Long): Boolean =
    old != 0L && !Rows.has(old, Rows.Own) && Rows.valueLength(old) == Rows.valueLength(row) &&
      KeyHash.same(null, Rows.valueAddress(old), null, Rows.valueAddress(row), Rows.valueLength(row))

  /** The base version's row for a slot's word. */
  private def base(word: Long): Long = {
    if (word == 0L) 0L
    else {
      val row = rowOf(word)
      val flags = Rows.flags(row)
      if ((flags & Rows.Own) != 0) ofBase(row)
      else if (isRemoved(word) && (flags & Rows.Removed) == 0) 0L
      else live(row)
    }
  }

  /** The base version's row of the key of an own row, or 0. */
  private def ofBase(row: Long): Long = {
    if (baseRows == null) baseRows = new BaseRows(undo, pool)
    val found = baseRows.of(row)
    if (found == 0L) 0L else live(found)
  }

  /** The row that a slot's word, copied a while ago, leads to, or 0; the transaction that wrote it may have ended. */
  private[table] def seen(word: Long, inBase: Boolean): Long = {
    val row = rowOf(word)
    val found =
      if (!inBase) if (isRemoved(word)) 0L else row
      else if (isRemoved(word) || Rows.has(row, Rows.Own)) getBase(null, Rows.keyAddress(row), Rows.keyLength(row))
      else row
    if (found == 0L) 0L else handOut(found)
  }
}

private[table] object FamilyTable {

  /** No row has this address. */
  val Unknown: Long = -8L
}
