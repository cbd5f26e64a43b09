package org.apache.spark.sql.lamina.table

import org.apache.spark.unsafe.Platform

/**
 * 64-bit hash of byte ranges by multiply-and-fold, for the index, for digests and for the parts of a rewrite. Not stable
 * across versions of lamina: files name it by `Name`, which changes with it.
 */
object KeyHash {

  /** What this function is called in files. */
  val Name = "fold-1"

  private val K0 = 0x9e3779b97f4a7c15L
  private val K1 = 0xd6e8feb86659fd93L
  private val K2 = 0xa0761d6478bd642fL

  /** Which of `parts` equal ranges of hashes, in their unsigned order, a hash is in. */
  private[table] def part(hash: Long, parts: Int): Int =
    (Math.multiplyHigh(hash, parts.toLong) + (if (hash < 0) parts else 0)).toInt

  /** The smallest hash of a part. */
  private[table] def first(part: Int, parts: Int): Long = (((BigInt(part) << 64) + parts - 1) / parts).toLong

  private[table] def hash(base: AnyRef, offset: Long, length: Int): Long = hash(base, offset, length, K0)

  private[table] def hash(base: AnyRef, offset: Long, length: Int, seed: Long): Long = {
    var h = seed ^ (length * K2)
    val words = length & ~7
    var i = 0
    while (i < words) {
      h = fold(h ^ Platform.getLong(base, offset + i), K1)
      i += 8
    }
    if (i < length) {
      var tail = 0L
      var shift = 0
      while (i < length) {
        tail |= (Platform.getByte(base, offset + i) & 0xffL) << shift
        shift += 8
        i += 1
      }
      h = fold(h ^ tail, K2)
    }
    h = fold(h ^ K2, K0)
    h ^ (h >>> 29)
  }

  private def fold(a: Long, b: Long): Long = (a * b) ^ java.lang.Long.rotateLeft(Math.multiplyHigh(a, b), 23) ^ a

  /** Equality of two byte ranges, eight bytes at a time. */
  private[table] def same(aBase: AnyRef, aOffset: Long, bBase: AnyRef, bOffset: Long, length: Int): Boolean = {
    val words = length & ~7
    var i = 0
    while (i < words) {
      if (Platform.getLong(aBase, aOffset + i) != Platform.getLong(bBase, bOffset + i)) return false
      i += 8
    }
    while (i < length) {
      if (Platform.getByte(aBase, aOffset + i) != Platform.getByte(bBase, bOffset + i)) return false
      i += 1
    }
    true
  }
}
