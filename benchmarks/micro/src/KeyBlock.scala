// Keys and values as the aggregation benchmark's operator hands them over, made ahead of what is timed.
package lamina.benchmarks.micro

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types.{LongType, StringType, StructType}
import org.apache.spark.unsafe.Platform

/**
 * UnsafeRows of 40 bytes in one array, each a string of 24 characters; values are rows of 32 bytes.
 *
 * @param ids which keys, in which order
 */
final class KeyBlock(ids: Array[Long]) {
  import KeyBlock._

  val bytes = new Array[Byte](ids.length * KeyBytes)
  val count: Int = ids.length
  private val row = new UnsafeRow(1)

  {
    var i = 0
    while (i < ids.length) {
      writeKey(bytes, i * KeyBytes, ids(i))
      i += 1
    }
  }

  def offset(i: Int): Long = Platform.BYTE_ARRAY_OFFSET + i.toLong * KeyBytes

  /** The same row object for all keys, as operators do. */
  def key(i: Int): UnsafeRow = {
    row.pointTo(bytes, offset(i), KeyBytes)
    row
  }
}

object KeyBlock {
  val KeySchema: StructType = new StructType().add("key", StringType)
  val ValueSchema: StructType = new StructType().add("n", LongType).add("top", LongType).add("total", LongType)
  val KeyBytes = 40
  val ValueBytes = 32
  private val Prefix = "customer-000000000000000".getBytes("US-ASCII")

  def writeKey(target: Array[Byte], at: Int, id: Long): Unit = {
    val start = Platform.BYTE_ARRAY_OFFSET.toLong + at
    Platform.putLong(target, start, 0L)
    Platform.putLong(target, start + 8, (16L << 32) | Prefix.length)
    System.arraycopy(Prefix, 0, target, at + 16, Prefix.length)
    var digit = at + 16 + Prefix.length - 1
    var rest = id
    while (rest > 0) {
      target(digit) = ('0' + rest % 10).toByte
      rest /= 10
      digit -= 1
    }
  }

  /** count, max, sum */
  def writeValue(target: Array[Byte], n: Long): Unit = {
    Platform.putLong(target, Platform.BYTE_ARRAY_OFFSET.toLong, 0L)
    Platform.putLong(target, Platform.BYTE_ARRAY_OFFSET + 8L, n)
    Platform.putLong(target, Platform.BYTE_ARRAY_OFFSET + 16L, n * 31)
    Platform.putLong(target, Platform.BYTE_ARRAY_OFFSET + 24L, n * 131)
  }
}
