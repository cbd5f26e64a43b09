package org.apache.spark.sql.lamina.table

import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * The keys of a layered column family whose rows have a label, in unsigned byte order: those that may differ from the state below.
 *
 * Only scans need them. So they are found in the index at the first scan, kept up to date from then on, and dropped after some
 * transactions without a scan.
 */
private[table] final class LabelledKeys(pool: PagePool, index: HashIndex, layer: Layer) {
  private var keys: OrderedKeys = _

  /** Transactions that ended since a scan asked. */
  private var unscanned = 0

  def bytes: Long = if (keys == null) 0L else keys.bytes

  /**
   * The keys, for a scan; others than before where they were dropped meanwhile. One that is sent may ask beside one of a reader, and
   * finds them there (`StoreTable.settleScan`).
   */
  def all: OrderedKeys = synchronized {
    unscanned = 0
    var step = Layer.Relieve
    while (keys == null)
      try keys = find()
      catch {
        case error: LaminaError if error.kind == LaminaError.MemoryCap =>
          // then few are left
          step = layer.refused(step)
          if (step < 0) throw error
      }
    keys
  }

  private def find(): OrderedKeys = {
    val found = new OrderedKeys(pool)
    var isWhole = false
    try {
      index.foreachRow { row =>
        if (Rows.label(row) != 0) found.add(null, Rows.keyAddress(row), Rows.keyLength(row))
      }
      isWhole = true
    } finally if (!isWhole) found.close()
    found
  }

  /** The key of a row has one with a label now. */
  def add(row: Long): Unit = if (keys != null) keys.add(null, Rows.keyAddress(row), Rows.keyLength(row))

  /** The key of a row has none with a label any more. */
  def remove(row: Long): Unit = if (keys != null) keys.remove(null, Rows.keyAddress(row), Rows.keyLength(row))

  /** A transaction has ended. */
  def ended(): Unit = if (keys != null) {
    unscanned += 1
    if (unscanned > LabelledKeys.KeptUnscanned) close()
  }

  def close(): Unit = if (keys != null) {
    keys.close()
    keys = null
  }
}

private[table] object LabelledKeys {

  /** Kept for so many transactions after the last scan. */
  val KeptUnscanned = 8
}
