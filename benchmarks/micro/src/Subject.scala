// What is measured, and two of the maps: lamina's table, and a java.util.HashMap of copied rows.
package lamina.benchmarks.micro

import java.util.HashMap

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.lamina.table.{FamilyTable, PagePool, Rows, StoreTable}
import org.apache.spark.sql.lamina.wire.ChangeMessages
import org.apache.spark.unsafe.Platform

/** Each method does one pass and returns a checksum, so that no work can be optimized away. */
trait Subject {
  def get(keys: KeyBlock): Long
  def put(keys: KeyBlock, value: Array[Byte], stamp: Long): Unit
  def commit(): Long
  def scan(): Long
  def rows: Long

  /** Of all keys and values, in whatever order they come. */
  def digest(): Long

  /** Wall time since the last call, by part of the commit, in nanoseconds. */
  def commitParts(): Seq[(String, Long)]
}

object Subject {

  /** What one row adds to a digest. */
  def hash(key: UnsafeRow, value: UnsafeRow): Long = {
    val mixed = ((key.hashCode.toLong << 32) ^ (value.hashCode & 0xffffffffL)) * 0x9e3779b97f4a7c15L
    mixed ^ (mixed >>> 29)
  }

  /** The digest of all rows of a column family of a table. */
  def digest(family: FamilyTable): Long = {
    val (key, value) = (new UnsafeRow(1), new UnsafeRow(3))
    val cursor = family.scan(startsAtBase = false)
    var sum = 0L
    var found = cursor.next()
    while (found != 0L) {
      key.pointTo(null, Rows.keyAddress(found), Rows.keyLength(found))
      value.pointTo(null, Rows.valueAddress(found), Rows.valueLength(found))
      sum += hash(key, value)
      found = cursor.next()
    }
    sum
  }
}

/** What the parts of commits took, in nanoseconds of wall time. */
final class CommitClock {
  private var collectNanos, endNanos, reclaimNanos = 0L

  /** One commit: its change set as the messages that would be sent, the transaction's end, and what reclaim there is. */
  def commit(collect: => Long)(end: => Unit)(reclaim: => Unit): Long = {
    val start = System.nanoTime()
    val bytes = collect
    val collected = System.nanoTime()
    end
    val ended = System.nanoTime()
    reclaim
    collectNanos += collected - start
    endNanos += ended - collected
    reclaimNanos += System.nanoTime() - ended
    bytes
  }

  /** The sums since the last call. */
  def take(): Seq[(String, Long)] = {
    val parts = Seq("collect" -> collectNanos, "end" -> endNanos, "reclaim" -> reclaimNanos)
    collectNanos = 0L
    endNanos = 0L
    reclaimNanos = 0L
    parts
  }
}

final class TableSubject extends Subject {
  private val pool = new PagePool(16L << 30)
  private val table = new StoreTable(pool)
  private val family = table.addFamily(0, ordered = false, multiValue = false)
  private val messages = new ChangeMessages
  private val clock = new CommitClock
  private val row = new UnsafeRow(3)

  override def get(keys: KeyBlock): Long = {
    var sum = 0L
    var i = 0
    while (i < keys.count) {
      val found = family.get(keys.bytes, keys.offset(i), KeyBlock.KeyBytes)
      if (found != 0L) {
        row.pointTo(null, Rows.valueAddress(found), Rows.valueLength(found))
        sum += row.getLong(0)
      }
      i += 1
    }
    sum
  }

  override def put(keys: KeyBlock, value: Array[Byte], stamp: Long): Unit = {
    if (!table.inTransaction) table.begin()
    var i = 0
    while (i < keys.count) {
      KeyBlock.writeValue(value, stamp + i)
      family.put(
        keys.bytes, keys.offset(i), KeyBlock.KeyBytes, value, Platform.BYTE_ARRAY_OFFSET.toLong, KeyBlock.ValueBytes)
      i += 1
    }
  }

  override def commit(): Long = clock.commit(messages.build(table))(table.commit()) {
    while (table.maintain(4)) ()
  }

  override def commitParts(): Seq[(String, Long)] = clock.take()

  override def scan(): Long = {
    val cursor = family.scan(startsAtBase = false)
    var sum = 0L
    var found = cursor.next()
    while (found != 0L) {
      row.pointTo(null, Rows.valueAddress(found), Rows.valueLength(found))
      sum += row.getLong(0)
      found = cursor.next()
    }
    sum
  }

  override def rows: Long = table.rows(0)

  override def digest(): Long = Subject.digest(family)
}

final class MapSubject extends Subject {
  private val map = new HashMap[UnsafeRow, UnsafeRow]()

  override def get(keys: KeyBlock): Long = {
    var sum = 0L
    var i = 0
    while (i < keys.count) {
      val found = map.get(keys.key(i))
      if (found != null) sum += found.getLong(0)
      i += 1
    }
    sum
  }

  override def put(keys: KeyBlock, value: Array[Byte], stamp: Long): Unit = {
    val row = new UnsafeRow(3)
    row.pointTo(value, KeyBlock.ValueBytes)
    var i = 0
    while (i < keys.count) {
      KeyBlock.writeValue(value, stamp + i)
      map.put(keys.key(i).copy(), row.copy())
      i += 1
    }
  }

  override def commit(): Long = 0L

  override def commitParts(): Seq[(String, Long)] = Seq.empty

  override def scan(): Long = {
    val entries = map.entrySet().iterator()
    var sum = 0L
    while (entries.hasNext) sum += entries.next().getValue.getLong(0)
    sum
  }

  override def rows: Long = map.size()

  override def digest(): Long = {
    val entries = map.entrySet().iterator()
    var sum = 0L
    while (entries.hasNext) {
      val entry = entries.next()
      sum += Subject.hash(entry.getKey, entry.getValue)
    }
    sum
  }
}
