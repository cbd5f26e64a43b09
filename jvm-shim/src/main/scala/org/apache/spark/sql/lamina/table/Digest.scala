package org.apache.spark.sql.lamina.table

/** A 128-bit digest of a set of entries that does not depend on their order: a sum of two independent hashes for each entry. */
private[table] final class Digest {
  private var high = 0L
  private var low = 0L

  def add(family: Int, op: Byte, key: Long, keyLength: Int, value: Long, valueLength: Int): Unit = {
    val seed = family.toLong << 8 | op
    high += KeyHash.hash(null, value, valueLength, KeyHash.hash(null, key, keyLength, seed ^ Digest.High))
    low += KeyHash.hash(null, value, valueLength, KeyHash.hash(null, key, keyLength, seed ^ Digest.Low))
  }

  def hex: String = f"$high%016x$low%016x"
}

private object Digest {
  val High = 0x5851f42d4c957f2dL
  val Low = 0x2545f4914f6cdd1dL
}
