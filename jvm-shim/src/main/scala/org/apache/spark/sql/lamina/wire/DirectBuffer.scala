package org.apache.spark.sql.lamina.wire

import java.nio.{ByteBuffer, ByteOrder}
import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.sql.lamina.errors.LaminaError
import org.apache.spark.storage.StorageUtils
import org.apache.spark.unsafe.Platform

/**
 * Off-heap memory that is used again and again for one kind of content, grows by doubling, and is given back when it
 * has been much too large for a while.
 *
 * Not thread-safe; owned by one reader or writer at a time.
 */
private[wire] final class DirectBuffer(initial: Int) {
  import DirectBuffer._

  private var buffer: ByteBuffer = _
  private var bytes = 0
  private var start = 0L
  private var uses = 0
  private var peak = 0

  /** Bytes that fit. */
  def capacity: Int = bytes

  /** Address of the first byte; changes when the buffer grows. A multiple of 8. */
  def address: Long = start

  /** Makes room for `wanted` bytes; the first `kept` bytes, as far as there are any, stay what they were. */
  def ensure(wanted: Long, kept: Int): Unit = if (wanted > bytes) grow(wanted, kept)

  private def grow(wanted: Long, kept: Int): Unit = {
    if (wanted > MaxBytes)
      throw new LaminaError(LaminaError.RowTooLarge, s"one entry needs $wanted bytes; at most $MaxBytes fit")
    val size = math.max(initial.toLong, math.max(wanted, math.min(2L * bytes, MaxBytes.toLong)))
    val rounded = math.min((size + 4095L) & ~4095L, MaxBytes.toLong).toInt
    val larger = Platform.allocateDirectBuffer(rounded)
    val largerStart = Platform.getDirectBufferAddress(larger)
    if (bytes > 0) Platform.copyMemory(null, start, null, largerStart, math.min(kept, bytes).toLong)
    free()
    buffer = larger.order(ByteOrder.LITTLE_ENDIAN)
    start = largerStart
    bytes = rounded
    total.addAndGet(rounded.toLong)
  }

  /** The first `length` bytes, to read from or write into. Valid until the buffer grows or is freed. */
  def view(length: Int): ByteBuffer = {
    val view = buffer.duplicate().order(ByteOrder.LITTLE_ENDIAN)
    view.clear().limit(length)
    view
  }

  /** Ends one use that filled `used` bytes. A very large buffer is freed at once, an oversized one every few uses. */
  def release(used: Int): Unit = {
    uses += 1
    peak = math.max(peak, used)
    if (bytes > KeptBytes) free()
    else if (uses % UsesPerTrim == 0) {
      if (bytes > initial && bytes / 4 > peak) free()
      peak = 0
    }
  }

  def free(): Unit = if (buffer != null) {
    total.addAndGet(-bytes.toLong)
    val freed = buffer
    buffer = null
    start = 0
    bytes = 0
    StorageUtils.dispose(freed)
  }
}

private[wire] object DirectBuffer {

  /** Largest size that is still a multiple of 8. */
  val MaxBytes: Int = Int.MaxValue - 7

  /** A buffer above this size does not survive the use that made it so large. */
  private val KeptBytes = 32 << 20
  private val UsesPerTrim = 16

  private val total = new AtomicLong

  /** Bytes that all buffers of this JVM hold now. */
  def totalBytes: Long = total.get
}
