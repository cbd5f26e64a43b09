package org.apache.spark.sql.lamina.table

import scala.collection.mutable

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.unsafe.Platform

/**
 * The state of one store in memory: one [[FamilyTable]] per column family, one transaction at a time, one version back.
 *
 * Not thread-safe, but for `readersEnded`: the provider calls everything under the store's lock. Rows handed out are off-heap
 * addresses; they stay readable while their reader (see `readersActive`) lives.
 *
 * @param spills makes a place on the local disk for changes of a transaction of a layered table, where memory is short; or null
 */
final class StoreTable(pool: PagePool, layered: Boolean = false, spills: () => Spill = null) extends Relief {
  private val layer = if (layered) new Layer(pool, this) else null
  private val families = mutable.TreeMap.empty[Int, FamilyTable]
  private val resting = new Resting(pool)
  private var open = false
  private var stepBackPossible = false
  private var reclaimBudget = 0L
  private val moves = mutable.HashMap.empty[Int, MovedRows]

  /**
   * Adds a column family; nothing happens where it is there already.
   *
   * @param held of a layered table: whether all of its rows are held in memory
   */
  def addFamily(id: Int, ordered: Boolean, multiValue: Boolean, held: Boolean = false): FamilyTable = {
    require(takes(id, ordered, multiValue, held), s"column family $id is there in another shape")
    val below = if (held) null else layer
    families.getOrElseUpdate(id, new FamilyTable(id, ordered, multiValue, pool, resting, below, layer))
  }

  private[table] override def forgetting: Iterable[FamilyTable] = families.values.filter(_.forgets)

  /** Whether a column family of this shape can have the id: an aborted transaction may have left one of another. */
  def takes(id: Int, ordered: Boolean, multiValue: Boolean, held: Boolean = false): Boolean =
    families.get(id).forall { there =>
      there.ordered == ordered && there.multiValue == multiValue && (!layered || there.forgets != held)
    }

  def family(id: Int): FamilyTable = families.getOrElse(id, throw new NoSuchElementException(s"no column family $id"))

  /** Whether a column family is one of its, and not one of before it was loaded anew. */
  def has(family: FamilyTable): Boolean = familyOrNull(family.id) eq family

  /** The column family, or null where there is none. */
  def familyOrNull(id: Int): FamilyTable = families.getOrElse(id, null)

  def inTransaction: Boolean = open

  def begin(): Unit = {
    require(!open, "a transaction is open")
    settleMoves()
    // Twice what was given up since the last begin: the backlog cannot grow, whatever maintenance gets done.
    resting.freeRows(math.max(StoreTable.FreedAtOnce, 2L * resting.takeAdded()))
    if (layered) {
      layer.renew()
      layer.writing(begins = true)
    }
    isSent = false
    lacksPlace = false
    open = true
  }

  /** Removes all keys of a column family, as part of the open transaction. */
  def dropFamily(id: Int): Unit = family(id).dropAll()

  // ---- changes on the disk

  /** Whether changes of the open transaction are on the disk. */
  def isSpilled: Boolean = layered && layer.spill != null

  /** What these take there. */
  def spilledBytes: Long = if (isSpilled) layer.spill.bytes else 0L

  /** Bytes that the open transaction has brought into the table, and not yet put on the disk. */
  def cameBytes: Long = if (layered) layer.came else 0L

  /**
   * Puts the changes of the open transaction on the disk, and gives their memory back; whether there were any. One version back is
   * not kept by a transaction of which changes are there. Not while its change set is sent.
   */
  override def spill(): Boolean = hasToSpill && {
    val isNew = !isSpilled
    if (isNew) layer.spill = spills()
    writeSpill(isNew)
  }

  private def writeSpill(isNew: Boolean): Boolean = {
    try forgetting.foreach(_.writeSpill())
    catch {
      case error: Throwable =>
        // the table has everything still, and no use for one that failed
        if (isNew)
          try dropSpill()
          catch { case another: Throwable => error.addSuppressed(another) }
        throw error
    }
    forgetting.foreach(_.endSpill())
    layer.renew()
    resting.freeRows(Long.MaxValue)
    true
  }

  /** Whether it has changes that may be put there, as far as is known. */
  override def canSpill: Boolean = hasToSpill && !lacksPlace

  /** Does so, where it can, before memory has run out: nothing happens where there is no place on the disk. */
  override def spillEarly(): Boolean = {
    val isNew = !isSpilled
    hasPlace() && {
      try writeSpill(isNew)
      catch {
        case error: LaminaError if isNew && error.kind == LaminaError.StorageFailed =>
          lacksPlace = true
          false
      }
    }
  }

  private def hasToSpill: Boolean = layered && open && !isSent && spills != null && forgetting.exists(_.changes > 0)

  /** Whether there is a place for changes; it is asked for once in a transaction. */
  private def hasPlace(): Boolean = isSpilled || {
    try layer.spill = spills()
    catch { case error: LaminaError if error.kind == LaminaError.StorageFailed => lacksPlace = true }
    isSpilled
  }

  private var lacksPlace = false

  /** Before the change set is sent: of a transaction of which some is on the disk the rest goes there, too. Nothing does meanwhile. */
  def settleSpill(): Unit = {
    if (isSpilled) {
      spill()
      layer.spill.flush()
    }
    isSent = true
  }

  /**
   * Before all rows are sent beside the change set, and before anything is: finds what their scan goes by. Without the lock, while
   * others read, no memory could be had for it by forgetting rows.
   */
  def settleScan(): Unit = if (layered && isSent) {
    isSent = false
    try forgetting.foreach(_.findKeys())
    finally settleSpill()
  }

  /** It was sent in vain: the transaction goes on. */
  def unsettle(): Unit = isSent = false

  private var isSent = false

  /** The version that has the rows outside of a transaction. */
  var at = 0L

  /**
   * Puts all rows on the disk that differ from the state below, those of the open transaction first, and forgets the others; whether
   * there were any. One version back is not kept.
   */
  override def relieve(): Boolean = layered && !isSent && spills != null && {
    val changed = spill()
    if (!open) settleMoves()
    var spilled: Spill = null
    var isDone = false
    try {
      forgetting.foreach { family =>
        family.foreachDiffering { row =>
          if (spilled == null) spilled = spills()
          spilled.put(family.id, Rows.keyAddress(row), Rows.keyLength(row), Spilled.of(row))
        }
      }
      if (spilled != null) {
        spilled.flush()
        isDone = true
      }
    } finally if (!isDone && spilled != null) spilled.close()
    if (isDone) {
      // what is gone cannot be stepped back to
      families.values.foreach(_.forgetUndo())
      stepBackPossible = false
      // before they go: rows that are in both places are the same
      layer.below = new SpilledBelow(layer.below, spilled, at)
      layer.renew()
      forgetting.foreach(_.dropBase())
    }
    val forgotten = forgetting.map(_.forgetAllClean()).sum
    resting.freeRows(Long.MaxValue)
    changed || isDone || forgotten > 0
  }

  /** How many sets of changes of versions above the tables below are on the disk. */
  def spillsBelow: Int = if (!layered) 0
  else
    layer.below match {
      case spilled: SpilledBelow => spilled.depth
      case _ => 0
    }

  private def dropSpill(): Unit = if (isSpilled) {
    val spill = layer.spill
    layer.spill = null
    layer.renew()
    spill.close()
  }

  /** Sends what is on the disk; stops early when `visit` says false. */
  private def foreachSpilled(visit: (Int, Byte, Array[Byte], Array[Byte]) => Boolean): Unit = {
    val all = forgetting.iterator
    var go = isSpilled
    while (go && all.hasNext) {
      val family = all.next()
      go = family.foreachSpilled { (key, entry) =>
        Spilled.isNothing(entry) || visit(family.id, Spilled.op(entry), key, entry)
      }
    }
  }

  // ---- the change set

  /** Whether the open transaction amounts to nothing. */
  def isUnchanged: Boolean = {
    var changed = false
    foreachSpilled { (_, _, _, _) =>
      changed = true
      false
    }
    families.values.foreach { family =>
      if (!changed) family.foreachChange { (_, _) =>
        changed = true
        false
      }
    }
    !changed
  }

  /** Sends each key that the open transaction changed once. */
  def changeSet(sink: EntrySink): ChangeSummary = {
    var rows = 0L
    var bytes = 0L
    families.values.foreach { family =>
      family.foreachChange { (op, row) =>
        val key = Rows.keyAddress(row)
        val keyLength = Rows.keyLength(row)
        val from = if (op == Ops.Append) Rows.listBase(row) else 0
        val value = Rows.valueAddress(row) + from
        val valueLength = if (op == Ops.Delete) 0 else Rows.valueLength(row) - from
        sink.entry(family.id, op, null, key, keyLength, null, value, valueLength)
        rows += 1
        bytes += keyLength + valueLength
        true
      }
    }
    foreachSpilled { (family, op, key, entry) =>
      val from = if (op == Ops.Append) Spilled.listBase(entry) else 0
      val valueLength = if (op == Ops.Delete) 0 else Spilled.valueLength(entry) - from
      sink.entry(
        family,
        op,
        key,
        StoreTable.Bytes,
        key.length,
        entry,
        Spilled.valueOffset + from,
        valueLength
      )
      rows += 1
      bytes += key.length + valueLength
      true
    }
    reclaimBudget = 4 * (PagePool.PageBytes + bytes + families.values.map(_.leftBytes).sum)
    ChangeSummary(rows, bytes)
  }

  /**
   * Ends the transaction; its undo log is kept as one version back, the one before is dropped.
   *
   * @param version that has its changes
   */
  def commit(version: Long = 0L): Unit = {
    require(open, "no transaction is open")
    settleSpill()
    families.values.foreach(_.commit())
    open = false
    if (layered) layer.writing(begins = false)
    isSent = false
    stepBackPossible = !isSpilled
    if (isSpilled) {
      families.values.foreach(_.forgetUndo())
      layer.below = new SpilledBelow(layer.below, layer.spill, version)
      layer.spill = null
    }
    if (layered) layer.renew()
  }

  /** Ends the transaction as if it had not been. */
  def abort(): Unit = if (open) {
    families.values.foreach(_.abort())
    open = false
    if (layered) layer.writing(begins = false)
    isSent = false
    dropSpill()
    reclaimBudget = math.max(reclaimBudget, StoreTable.ReclaimedAfterAbort)
  }

  def canStepBack: Boolean = stepBackPossible && !open

  /**
   * A digest of what the last committed transaction left of each key that it touched, whatever their order. Transactions
   * on one base that have the same digest left the same rows.
   */
  def lastDigest: String = {
    require(canStepBack, "no undo log is kept")
    settleMoves()
    val digest = new Digest
    families.values.foreach(_.addLastTo(digest))
    digest.hex
  }

  /** Undoes the last committed transaction. */
  def stepBack(): Unit = {
    require(canStepBack, "no undo log is kept")
    settleMoves()
    families.values.foreach(_.stepBack())
    stepBackPossible = false
  }

  /** Sends every live entry as a put; returns how many. */
  def snapshot(sink: EntrySink): Long = {
    var rows = 0L
    families.values.foreach { family =>
      // of its own: others may read meanwhile
      val cursor = family.scan(startsAtBase = false, new TransientRow)
      var row = cursor.next()
      while (row != 0L) {
        put(family, row, sink)
        rows += 1
        row = cursor.next()
      }
    }
    rows
  }

  /** Sends every live entry whose key's hash is in one of `parts` parts, as a put; the cost is that of the part. */
  def rewrite(part: Int, parts: Int, sink: EntrySink): Unit = families.values.foreach { family =>
    if (!family.forgets) family.foreachIn(part, parts)(row => put(family, row, sink))
    else {
      val cursor = family.scan(startsAtBase = false, new TransientRow)
      var row = cursor.next()
      while (row != 0L) {
        val hash = KeyHash.hash(null, Rows.keyAddress(row), Rows.keyLength(row))
        if (KeyHash.part(hash, parts) == part) put(family, row, sink)
        row = cursor.next()
      }
    }
  }

  private def put(family: FamilyTable, row: Long, sink: EntrySink): Unit = sink.entry(
    family.id,
    Ops.Put,
    null,
    Rows.keyAddress(row),
    Rows.keyLength(row),
    null,
    Rows.valueAddress(row),
    Rows.valueLength(row)
  )

  // ---- a layered table

  /** Keys that were looked for below, and those that were there, since the table was made. */
  def readsBelow: (Long, Long) = if (layered) (layer.reads, layer.found) else (0L, 0L)

  /** The state below, or null where there is none. */
  def below: Below = if (layered) layer.below else null

  /**
   * Has the table stand on the state of a version, which is that of the rows outside of a transaction or an older one; rows that
   * are the same there may go from now on. Before a fill, and between transactions. What was below before is closed.
   *
   * @param isTable whether it is the state that the table has
   */
  def standOn(below: Below, isTable: Boolean = false): Unit = {
    require(layered && !open, "only a layered table stands on something, between transactions")
    layer.below = layer.below match {
      case spilled: SpilledBelow => spilled.on(below)
      case before =>
        if (before != null) before.close()
        below
    }
    layer.renew()
    layer.labels.raise(below.version)
    startSweep()
    if (isTable) {
      if (!layer.labels.raiseToTable()) {
        finishSweep()
        layer.labels.raiseToTable()
      }
      startSweep()
    }
  }

  /** Column families in which rows that do not differ from the state below any more have not been looked for. */
  private var sweeping: List[FamilyTable] = Nil
  private var sweepsFor = 0

  private def startSweep(): Unit = {
    sweepsFor = layer.labels.cleaned
    sweeping = if (sweepsFor == 0) Nil else forgetting.toList
    sweeping.foreach(_.startSweep())
    if (sweeping.isEmpty) layer.labels.release(sweepsFor)
  }

  /** Looks in one part of an index; whether there are more. */
  private def sweep(): Boolean = sweeping.nonEmpty && {
    if (sweeping.head.sweep()) {
      sweeping = sweeping.tail
      if (sweeping.isEmpty) layer.labels.release(sweepsFor)
    }
    sweeping.nonEmpty
  }

  /** Nothing can be stepped back to any more: the state below is newer. Between transactions. */
  def forgetUndo(): Unit = {
    require(!open, "a transaction is open")
    settleMoves()
    families.values.foreach(_.forgetUndo())
    stepBackPossible = false
  }

  /** Rows that are written from now on are of versions above this one: once it is below, the others may go. Between transactions. */
  def cut(version: Long): Boolean = layered && {
    layer.labels.cut(version) || sweeping.nonEmpty && {
      finishSweep()
      layer.labels.cut(version)
    }
  }

  private def finishSweep(): Unit = {
    settleMoves()
    while (sweep()) ()
  }

  /**
   * Forgets rows that are the same below until so many bytes are free, or all were looked at; the bytes that went. Between
   * transactions.
   */
  def forgetClean(wanted: Long): Long = {
    var bytes = 0L
    if (layered && !open && layer.below != null) {
      settleMoves()
      forgetting.foreach { family =>
        var parts = family.indexParts
        while (bytes < wanted && parts > 0) {
          bytes += family.forgetClean()
          parts -= 1
        }
      }
      reclaimBudget += 4 * bytes
    }
    bytes
  }

  /** Prepares an empty column family for a number of rows. */
  def reserve(family: Int, rows: Long): Unit = this.family(family).reserve(rows)

  /** Fills a column family that is held with what is below, after all entries that came on top of that. */
  def hold(family: Int, sink: EntrySink): Unit = if (layered && layer.below != null) {
    BelowEntries.foreach(layer.below.read(family, _, _, null, _)) { (key, value) =>
      sink.entry(family, Ops.Put, key, StoreTable.Bytes, key.length, value, StoreTable.Bytes, value.length)
      true
    }
    ()
  }

  /** The end of a restore, whose entries the column families' `filling` got. */
  def endFill(): Unit = families.values.foreach(_.filling.end())

  /**
   * Lets space be used again that transactions left, then reclaims at most `maxPages` pages; not while a transaction is
   * open. Altogether as many pages as keep up with what the last transaction wrote.
   *
   * @return whether there is more to do before the next transaction
   */
  def maintain(maxPages: Int): Boolean = !open && {
    if (moves.isEmpty && (resting.freeRows(StoreTable.FreedAtOnce) || sweep())) true else reclaim(maxPages)
  }

  private def reclaim(maxPages: Int): Boolean = PagePool.inBackground {
    var left = math.min(maxPages * PagePool.PageBytes, reclaimBudget)
    var (more, isDone) = (false, false)
    resting.hold()
    try {
      families.values.foreach { family =>
        var bytes = -1L
        while (left > 0 && bytes != 0L) {
          bytes = family.reclaimPage(moves.getOrElseUpdate(family.id, new MovedRows(pool)))
          left -= bytes
          reclaimBudget -= bytes
          if (bytes > 0) more = true
        }
      }
      isDone = true
    } finally {
      // also where there was no memory for the rest: pages that are empty go
      val goesOn = isDone && more && reclaimBudget > 0
      if (!goesOn) settleMoves()
      if (moves.isEmpty) resting.release()
    }
    more && reclaimBudget > 0
  }

  /** Lets the undo logs follow the rows that reclaim moved. Until then no page is used again: an address names one row. */
  private def settleMoves(): Unit = if (moves.nonEmpty) {
    for ((id, moved) <- moves if !moved.isEmpty; family <- families.get(id)) {
      family.follow(moved)
      resting.follow(family, moved)
    }
    forgetMoves()
    resting.release()
  }

  private def forgetMoves(): Unit = {
    moves.values.foreach(_.close())
    moves.clear()
  }

  /** Somebody starts to read rows under an id of their own choice. */
  def readersActive(id: Long): Unit = resting.readersActive(id)

  /** Nobody reads rows under this id any more. On any thread, without the lock too. */
  def readersEnded(id: Long): Unit = resting.readersEnded(id)

  /** Whether pages that the table has given up are still read. */
  def hasReadPages: Boolean = resting.hasPages

  def rows(family: Int): Long = this.family(family).rows

  def keyValueBytes(family: Int): Long = this.family(family).keyValueBytes

  def rows: Long = families.values.map(_.rows).sum

  def memory: TableMemory = {
    val all = families.values
    TableMemory(
      all.map(_.pageBytes).sum + resting.pageBytes,
      all.map(_.deadBytes).sum,
      all.map(_.indexBytes).sum,
      all.map(_.undoBytes).sum + resting.logBytes + moves.values.map(_.bytes).sum,
      all.map(_.orderedBytes).sum
    )
  }

  /** Empties the table. Pages wait for their readers. */
  def close(): Unit = {
    forgetMoves()
    resting.forgetRows()
    families.values.foreach(_.close())
    families.clear()
    open = false
    stepBackPossible = false
    resting.release()
    if (layered) {
      val below = layer.below
      layer.writing(begins = false)
      dropSpill()
      isSent = false
      layer.below = null
      layer.renew()
      layer.labels.clear()
      sweeping = Nil
      if (below != null) below.close()
    }
  }
}

private object StoreTable {
  val Bytes: Long = Platform.BYTE_ARRAY_OFFSET.toLong

  val ReclaimedAfterAbort: Long = 16 * PagePool.PageBytes

  /** Rows whose space is given up in one go: some milliseconds. */
  val FreedAtOnce = 16384L
}
