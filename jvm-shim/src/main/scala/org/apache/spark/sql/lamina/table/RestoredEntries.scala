package org.apache.spark.sql.lamina.table

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * Puts the entries of a load into a table: of a whole version, newest first, or of increments on top of what is there.
 *
 * What a key needs is all over memory. So for the keys that are announced first all slots of the index are read, then all
 * rows that they name: the processor waits for many at once, and the entries find what they need in its caches.
 */
private[lamina] final class RestoredEntries(table: StoreTable) extends EntrySink {
  private var onTop = false

  // Most entries are of the column family of the one before.
  private var lastId = -1
  private var last: FamilyTable = _

  // The keys that were announced, and how many of their entries were added.
  private val tables = new Array[FamilyTable](EntrySink.MostAhead)
  private val hashes = new Array[Long](EntrySink.MostAhead)
  private val words = new Array[Long](EntrySink.MostAhead)
  private var announced = 0
  private var added = 0

  // Nobody asks for it; without it the compiler would leave out what `fetch` reads.
  private var touched = 0L

  /**
   * Once, before the first entry.
   *
   * @param onTop whether the entries are changes, for the table's open transaction; else its column families are empty
   */
  def start(onTop: Boolean): Unit = this.onTop = onTop

  override def ahead(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Unit = {
    if (added == announced) {
      announced = 0
      added = 0
    }
    tables(announced) = tableOf(family)
    hashes(announced) = KeyHash.hash(keyBase, keyOffset, keyLength)
    announced += 1
  }

  override def fetch(): Unit = {
    var i = added
    while (i < announced) {
      words(i) = if (tables(i) == null) 0L else tables(i).filling.slot(hashes(i))
      i += 1
    }
    var sum = 0L
    i = added
    while (i < announced) {
      if (HashIndex.mayBe(words(i), hashes(i))) sum += Rows.keyLength(HashIndex.rowOf(words(i)))
      i += 1
    }
    touched += sum
  }

  override def entry(
      family: Int,
      op: Byte,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit = {
    if (added == announced) ahead(family, keyBase, keyOffset, keyLength)
    val into = tables(added)
    val hash = hashes(added)
    added += 1
    // Of a column family that was dropped since, older files still have entries, which lead to nothing.
    if (into == null) ()
    else if (onTop) op match {
      case Ops.Put => into.put(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      case Ops.Append => into.append(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      case Ops.Delete => into.remove(keyBase, keyOffset, keyLength)
      case other => throw new LaminaError(LaminaError.FileVersion, s"unknown operation $other in an increment")
    }
    else into.filling.add(hash, op, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
  }

  private def tableOf(family: Int): FamilyTable = {
    if (family != lastId) {
      last = table.familyOrNull(family)
      lastId = family
    }
    last
  }
}
