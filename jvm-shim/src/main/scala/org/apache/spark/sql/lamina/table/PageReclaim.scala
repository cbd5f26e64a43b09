package org.apache.spark.sql.lamina.table

/** Reclaims pages of one column family by moving their live rows, and has the index and the undo logs follow these. */
private[table] final class PageReclaim(index: HashIndex, pages: FamilyPages, lists: ListBuffers, multiValue: Boolean) {
  import HashIndex.{isRemoved, rowOf}

  /** Moves the live rows out of the page with the most dead ones; its bytes, or 0 where there is nothing to gain. */
  def reclaimPage(moved: MovedRows): Long = {
    val page = pages.mostDead
    if (page == null) 0L
    else {
      pages.empty(page) { row => if (Rows.isBuffer(row)) moveBuffer(row, moved) else moveRow(row, moved) }
      page.bytes
    }
  }

  private def moveRow(row: Long, moved: MovedRows): Unit = {
    val word = index.findKeyOf(row)
    val indexed = word != 0L && rowOf(word) == row
    // A row that is neither in the index nor held is dead.
    if (indexed || Rows.has(row, Rows.Held)) {
      moved.ensure()
      val copy = lists.copy(row)
      if (indexed) index.update(copy, isRemoved(word))
      // If this page is not finished, its old rows are dead to the next attempt.
      Rows.clearFlags(row, Rows.Held)
      moved.add(row, copy)
    }
  }

  /** Moves a buffer that has views. Its view in the index follows at once, those in logs with the logs. */
  private def moveBuffer(buffer: Long, moved: MovedRows): Unit = if (Rows.views(buffer) > 0) {
    moved.ensure()
    val copy = lists.copy(buffer)
    Rows.setViews(buffer, 0)
    moved.add(buffer, copy)
    val word = index.findKeyOf(buffer)
    if (word != 0L) lists.follow(rowOf(word), moved)
  }

  /** Points the entries of a log from `from` on, the first or the second of each pair or both, at rows that were moved. */
  def follow(log: LongLog, moved: MovedRows, from: Int, firsts: Boolean, seconds: Boolean): Unit = {
    log.follow(moved, from, firsts, seconds)
    var i = from
    while (multiValue && i < log.size) {
      val before = log.first(i)
      val after = log.second(i)
      // The lowest bit says that an earlier entry names the same row.
      if (firsts && before != 0L && (before & 1L) == 0L) lists.follow(before, moved)
      if (seconds && after != 0L) lists.follow(after, moved)
      i += 1
    }
  }
}
