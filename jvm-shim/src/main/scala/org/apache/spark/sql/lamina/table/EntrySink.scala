package org.apache.spark.sql.lamina.table

/**
 * Where a table sends its entries: the change set of a transaction, or a whole version.
 *
 * Key and value are (base object or null, offset or address, length in bytes), valid during the call only.
 */
trait EntrySink {
  def entry(
      family: Int,
      op: Byte,
      keyBase: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      valueBase: AnyRef,
      valueOffset: Long,
      valueLength: Int
  ): Unit

  /** Announces the key of an entry; at most `MostAhead` keys in the order of their entries, before the first of these. */
  def ahead(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Unit = ()

  /** The entries of all keys that were announced follow. */
  def fetch(): Unit = ()
}

object EntrySink {

  /** The keys themselves, the slots and the rows that are read for them fit into a processor's first cache. */
  val MostAhead = 64
}

/** Operations of entries, as in the file format. */
object Ops {
  val Put: Byte = 1
  val Delete: Byte = 2
  val Append: Byte = 3
}

/**
 * What a change set amounted to.
 *
 * @param rows entries
 * @param bytes key and value bytes
 */
final case class ChangeSummary(rows: Long, bytes: Long)

/** Off-heap bytes of a table: pages (dead rows are part of them), index, undo logs and what follows rows by them, ordered keys. */
final case class TableMemory(pageBytes: Long, deadBytes: Long, indexBytes: Long, undoBytes: Long, orderedBytes: Long) {
  def total: Long = pageBytes + indexBytes + undoBytes + orderedBytes
}
