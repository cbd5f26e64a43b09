package org.apache.spark.sql.lamina.table

/**
 * What lies below a table: the state of one version of its store, in files that are read in place. Never changes. Thread-safe.
 *
 * Keys are those of the column family, in unsigned byte order.
 */
private[lamina] trait Below extends AutoCloseable {

  /** The version whose state it is. */
  def version: Long

  /** What it takes on the local disk, in so many `files`. */
  def diskBytes: Long = 0L
  def files: Long = 0L

  /** How many of the files are at each level of RocksDB's. */
  def filesAtLevels: Seq[Long] = Nil

  /** The value of a key, or null where it is absent. */
  def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte]

  /**
   * Fills `into` with entries from a key on, which is left out where `above` says so, and below another one; null leaves a side
   * open.
   */
  def read(family: Int, from: Array[Byte], above: Boolean, until: Array[Byte], into: BelowEntries): Unit

  /** Whether reading has failed: the table that stands on it is to be loaded anew. */
  def isBroken: Boolean = false

  override def close(): Unit = ()
}

/**
 * Some entries of a column family in the order of their keys.
 *
 * @param first for how many there is room at first
 */
private[lamina] final class BelowEntries(first: Int = BelowEntries.LeastEntries / 2) {
  import BelowEntries._

  var keys: Array[Array[Byte]] = new Array(LeastEntries)
  var values: Array[Array[Byte]] = new Array(LeastEntries)
  var count = 0

  /** Whether nothing follows. */
  var isLast = false

  private var bytes = 0L
  private var most = first

  /** Empties it, for more than the last time: most scans are short. */
  def clear(): Unit = clear(math.min(2 * most, MostEntries))

  /** Empties it, for so many. */
  def clear(room: Int): Unit = {
    // values may be large
    java.util.Arrays.fill(keys.asInstanceOf[Array[AnyRef]], 0, count, null)
    java.util.Arrays.fill(values.asInstanceOf[Array[AnyRef]], 0, count, null)
    count = 0
    bytes = 0L
    isLast = false
    most = room
  }

  /** How many more it takes, but for a few. */
  def room: Int = math.max(LeastEntries, most - count)

  /** Whether there is room for more. */
  def hasRoom: Boolean = count < most && bytes < MostBytes

  def add(key: Array[Byte], value: Array[Byte]): Unit = {
    if (count == keys.length) {
      keys = java.util.Arrays.copyOf(keys, 2 * count)
      values = java.util.Arrays.copyOf(values, 2 * count)
    }
    keys(count) = key
    values(count) = value
    count += 1
    bytes += key.length + value.length
  }
}

private[lamina] object BelowEntries {
  val LeastEntries = 4
  val MostEntries = 256
  val MostBytes: Long = 256 << 10

  /**
   * Each entry of what `read` gives, which is asked for those from a key on, that key left out where it is told so. Stops early when
   * `visit` says false, and says so then.
   */
  def foreach(read: (Array[Byte], Boolean, BelowEntries) => Unit)(visit: (
      Array[Byte],
      Array[Byte]
  ) => Boolean): Boolean = {
    val entries = new BelowEntries
    var last: Array[Byte] = null
    var go = true
    while (go && !entries.isLast) {
      entries.clear()
      read(last, last != null, entries)
      var i = 0
      while (go && i < entries.count) {
        last = entries.keys(i)
        go = visit(last, entries.values(i))
        i += 1
      }
    }
    go
  }
}

/**
 * Since when rows of a table differ from what is below it: three labels take turns, and 0 says that a row does not differ.
 *
 * A label stands for a range of versions. When another state comes below, the rows of all ranges that end at its version or before do
 * not differ from it any more, and the label is ''clean''. Rows are not visited for that. Before the label stands for another range
 * all rows are looked at once, so that none has it any more; then it is ''free''. A row that a step back brings in again may
 * have a label that has come to stand for another range: then it seems to differ, which costs memory and no more.
 */
private[table] final class Labels {
  private val ends = Array.fill(4)(Long.MaxValue)
  private var isClean = 0
  private var isFree = 0
  private var last = 1

  /** That of rows which the open transaction writes. */
  def current: Int = last

  /** Whether rows with a label are as they are below. */
  def clean(label: Int): Boolean = (isClean >>> label & 1) != 0

  /** The labels, as bits, that rows have although they do not differ any more. */
  def cleaned: Int = isClean & ~isFree & ~1

  /** From now on rows are of versions above `version`; whether there is a label for them. */
  def cut(version: Long): Boolean = {
    val next = free
    next.foreach { label =>
      ends(last) = version
      take(label)
    }
    next.isDefined
  }

  /** The state of a version is below now. */
  def raise(version: Long): Unit =
    (1 to 3).foreach(label => if (label != last && ends(label) <= version) isClean |= 1 << label)

  /** The state that the table has is below now; whether there was a label for what will be written. */
  def raiseToTable(): Boolean = {
    raise(Long.MaxValue - 1)
    val next = free
    next.foreach { label =>
      isClean |= 1 << last
      take(label)
    }
    next.isDefined
  }

  /** No row has these labels any more, but those that differ. */
  def release(labels: Int): Unit = isFree |= labels & cleaned

  /** No row has a label but those that will be written. */
  def clear(): Unit = {
    isClean = 15
    isFree = 14
    take(1)
  }

  private def free: Option[Int] = (1 to 3).find(label => (isFree >>> label & 1) != 0)

  private def take(label: Int): Unit = {
    last = label
    ends(label) = Long.MaxValue
    isClean &= ~(1 << label)
    isFree &= ~(1 << label)
  }

  clear()
}
