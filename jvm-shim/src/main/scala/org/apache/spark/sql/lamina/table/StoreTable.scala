package org.apache.spark.sql.lamina.table

import scala.collection.mutable

/**
 * The state of one store in memory: one [[FamilyTable]] per column family, one transaction at a time, one version back.
 *
 * Not thread-safe: the provider calls everything under the store's lock. Rows handed out are off-heap addresses; they stay
 * readable while their reader (see `readersActive`) lives and for the quarantine of the pool after that.
 */
final class StoreTable(pool: PagePool) {
  private val families = mutable.TreeMap.empty[Int, FamilyTable]
  private val readers = mutable.LongMap.empty[Long]
  private val retired = new mutable.ArrayDeque[(Long, Page)]
  private var epoch = 0L
  private var open = false
  private var stepBackPossible = false
  private var reclaimBudget = 0
  private val moves = mutable.HashMap.empty[Int, MovedRows]

  /** Adds a column family; nothing happens where it is there already. */
  def addFamily(id: Int, ordered: Boolean, multiValue: Boolean): FamilyTable =
    families.getOrElseUpdate(id, new FamilyTable(id, ordered, multiValue, pool, retire))

  def family(id: Int): FamilyTable = families.getOrElse(id, throw new NoSuchElementException(s"no column family $id"))

  def inTransaction: Boolean = open

  def begin(): Unit = {
    require(!open, "a transaction is open")
    settleMoves()
    open = true
  }

  /** Removes all keys of a column family, as part of the open transaction. */
  def dropFamily(id: Int): Unit = family(id).dropAll()

  /** Whether the open transaction amounts to nothing. */
  def isUnchanged: Boolean = {
    var changed = false
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
    val digest = new Digest
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
        digest.add(family.id, op, key, keyLength, value, valueLength)
        rows += 1
        bytes += keyLength + valueLength
        true
      }
    }
    reclaimBudget = 4 + (4 * bytes / PagePool.PageBytes).toInt
    ChangeSummary(rows, bytes, digest.hex)
  }

  /** Ends the transaction; its undo log is kept as one version back, the one before is dropped. */
  def commit(): Unit = {
    require(open, "no transaction is open")
    families.values.foreach(_.commit())
    open = false
    stepBackPossible = true
  }

  /** Ends the transaction as if it had not been. */
  def abort(): Unit = if (open) {
    families.values.foreach(_.abort())
    open = false
    reclaimBudget = math.max(reclaimBudget, StoreTable.PagesAfterAbort)
  }

  def canStepBack: Boolean = stepBackPossible && !open

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
      val cursor = family.scan(base = false)
      var row = cursor.next()
      while (row != 0L) {
        sink.entry(
          family.id,
          Ops.Put,
          null,
          Rows.keyAddress(row),
          Rows.keyLength(row),
          null,
          Rows.valueAddress(row),
          Rows.valueLength(row)
        )
        rows += 1
        row = cursor.next()
      }
    }
    rows
  }

  /** Prepares an empty column family for a number of rows. */
  def reserve(family: Int, rows: Long): Unit = this.family(family).reserve(rows)

  /** One entry of a restore. Entries come newest first, outside of a transaction. */
  def fill(
      family: Int,
      op: Byte,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit =
    this.family(family).fill(op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)

  def endFill(): Unit = families.values.foreach(_.endFill())

  /**
   * Reclaims at most `maxPages` pages; not while a transaction is open. Altogether as many as keep up with what the last
   * transaction wrote.
   *
   * @return whether there is more to do before the next transaction
   */
  def maintain(maxPages: Int): Boolean = !open && {
    var pages = math.min(maxPages, reclaimBudget)
    var more = false
    families.values.foreach { family =>
      while (pages > 0 && family.reclaimPage(moves.getOrElseUpdate(family.id, new MovedRows))) {
        pages -= 1
        reclaimBudget -= 1
        more = true
      }
    }
    val goesOn = more && reclaimBudget > 0
    if (!goesOn) settleMoves()
    pool.sweep()
    goesOn
  }

  /** Lets the undo logs follow the rows that reclaim moved. Until then no page is used again: an address names one row. */
  private def settleMoves(): Unit = if (moves.nonEmpty) {
    moves.foreach { case (id, moved) => families.get(id).foreach(_.follow(moved)) }
    moves.clear()
    freeRetired()
  }

  /** Somebody starts to read rows under an id of their own choice. */
  def readersActive(id: Long): Unit = readers(id) = epoch

  /** Nobody reads rows under this id any more. */
  def readersEnded(id: Long): Unit = {
    readers.remove(id)
    freeRetired()
  }

  def rows(family: Int): Long = this.family(family).rows

  def keyValueBytes(family: Int): Long = this.family(family).keyValueBytes

  def rows: Long = families.values.map(_.rows).sum

  def memory: TableMemory = {
    val all = families.values
    TableMemory(
      all.map(_.pageBytes).sum + retired.map(_._2.bytes).sum,
      all.map(_.deadBytes).sum,
      all.map(_.indexBytes).sum,
      all.map(_.undoBytes).sum,
      all.map(_.orderedBytes).sum
    )
  }

  /** Empties the table. Pages wait for their readers. */
  def close(): Unit = {
    moves.clear()
    families.values.foreach(_.close())
    families.clear()
    open = false
    stepBackPossible = false
    freeRetired()
  }

  private def retire(page: Page): Unit = {
    epoch += 1
    retired.append((epoch, page))
    freeRetired()
  }

  /** Hands pages to the pool that no reader can know of. */
  private def freeRetired(): Unit = if (moves.isEmpty) {
    val oldest = if (readers.isEmpty) Long.MaxValue else readers.values.min
    while (retired.nonEmpty && retired.head._1 <= oldest) pool.retire(retired.removeHead()._2)
  }
}

private object StoreTable {
  val PagesAfterAbort = 16
}
