package org.apache.spark.sql.lamina

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.lamina.table.Rows
import org.apache.spark.unsafe.Platform

/** Bytes to hand to a table: (base object or null, offset or address, length). Reused from call to call. */
final class Bytes {
  var base: AnyRef = _
  var offset: Long = 0L
  var length: Int = 0

  def set(row: UnsafeRow): Unit = {
    base = row.getBaseObject
    offset = row.getBaseOffset
    length = row.getSizeInBytes
  }

  def set(bytes: Array[Byte]): Unit = {
    base = bytes
    offset = Platform.BYTE_ARRAY_OFFSET.toLong
    length = bytes.length
  }

  def toArray: Array[Byte] = Bytes.copy(base, offset, length)
}

object Bytes {
  def copy(base: AnyRef, offset: Long, length: Int): Array[Byte] = {
    val copied = new Array[Byte](length)
    Platform.copyMemory(base, offset, copied, Platform.BYTE_ARRAY_OFFSET, length)
    copied
  }
}

/**
 * Turns the rows of one column family into the bytes of a table and back.
 *
 * Keys without order and values are the UnsafeRow's own bytes and are read where they lie. Ordered keys and everything
 * in Avro go through Spark's RocksDB encoders, so that keys sort the same everywhere. A multi-value family's value is a
 * concatenation of elements, each u32 length and bytes. With row checksums, four bytes of CRC-32C over key and value
 * bytes follow each value or element.
 *
 * Not thread-safe: Spark's encoders reuse buffers. Used under the store's lock, except to read rows in place; no two
 * stores share one.
 */
final class FamilyCodec(
    val family: ColumnFamily,
    schemas: Option[StateSchemaProvider],
    storeConf: StateStoreConf,
    storeName: String
) {
  private val dataEncoder: RocksDBDataEncoder =
    if (family.avro) new AvroStateEncoder(family.spec, family.valueSchema, schemas, family.name)
    else new UnsafeRowDataEncoder(family.spec, family.valueSchema)
  private val keyEncoder = family.spec.toEncoder(dataEncoder, useColumnFamilies = true)
  private val keyColumns = family.keySchema.length
  private val valueColumns = family.valueSchema.length
  private val rawKeys = family.rawKeys
  private val rawValues = family.rawValues
  private val checksum = family.rowChecksum
  private val verifier =
    KeyValueIntegrityVerifier.create(storeName, checksum, storeConf.rowChecksumReadVerificationRatio)

  val multiValue: Boolean = family.multiValue

  /** Whether rows are read where they lie, without anything that the store's lock guards. */
  val readsInPlace: Boolean = rawKeys && rawValues && !checksum

  def supportsPrefixScan: Boolean = keyEncoder.supportPrefixKeyScan
  def supportsRangeScan: Boolean = keyEncoder.supportsRangeScan
  def supportsDeleteRange: Boolean = keyEncoder.supportsDeleteRange

  def key(row: UnsafeRow, out: Bytes): Unit = if (rawKeys) out.set(row) else out.set(keyEncoder.encodeKey(row))

  def orderedKey(row: UnsafeRow): Array[Byte] = keyEncoder.encodeKey(row)

  def prefix(row: UnsafeRow): Array[Byte] = keyEncoder.encodePrefixKey(row)

  /** Encodes a value for `key`, which is encoded already. */
  def value(key: Bytes, row: UnsafeRow, out: Bytes): Unit =
    if (multiValue) elements(key, Array(row), out)
    else if (rawValues && !checksum) out.set(row)
    else out.set(single(key, row))

  /** Encodes values of a multi-value family. */
  def elements(key: Bytes, rows: Array[UnsafeRow], out: Bytes): Unit = {
    var length = 0L
    val encoded = rows.map { row =>
      val bytes = single(key, row)
      length += bytes.length + 4L
      Rows.requireFits(key.length, length)
      bytes
    }
    val all = new Array[Byte](length.toInt)
    var at = Platform.BYTE_ARRAY_OFFSET
    encoded.foreach { bytes =>
      Platform.putInt(all, at, bytes.length)
      Platform.copyMemory(bytes, Platform.BYTE_ARRAY_OFFSET, all, at + 4, bytes.length)
      at += bytes.length + 4
    }
    out.set(all)
  }

  private def single(key: Bytes, row: UnsafeRow): Array[Byte] = {
    val bytes = if (rawValues) row.getBytes else dataEncoder.encodeValue(row)
    if (!checksum) bytes
    else {
      val stamped = java.util.Arrays.copyOf(bytes, bytes.length + 4)
      Platform.putInt(
        stamped,
        Platform.BYTE_ARRAY_OFFSET + bytes.length,
        KeyValueChecksum.create(key.toArray, Some(bytes))
      )
      stamped
    }
  }

  /** A fresh row of the key at an address. */
  def decodeKey(address: Long, length: Int): UnsafeRow =
    if (rawKeys) pointTo(keyColumns, null, address, length)
    else keyEncoder.decodeKey(Bytes.copy(null, address, length)).copy()

  /** A fresh row of a value; of a multi-value family its first element, or null where there is none. */
  def decodeValue(keyAddress: Long, keyLength: Int, address: Long, length: Int): UnsafeRow =
    if (multiValue) {
      if (length == 0) null
      else decodeSingle(null, keyAddress, keyLength, address + 4, Platform.getInt(null, address))
    } else decodeSingle(null, keyAddress, keyLength, address, length)

  /** How many bytes the element at an address of a multi-value family's value takes. */
  def elementBytes(address: Long): Int = Platform.getInt(null, address) + 4

  /** Walks the elements of a multi-value family's value. */
  def decodeValues(keyAddress: Long, keyLength: Int, address: Long, valueLength: Int): Iterator[UnsafeRow] =
    decodeValues(null, keyAddress, keyLength, address, valueLength)

  /** The same of a copy of the value, which is made at once: rows point into it where values are read where they lie. */
  def decodeCopiedValues(keyAddress: Long, keyLength: Int, address: Long, valueLength: Int): Iterator[UnsafeRow] = {
    // the key is for checksums alone
    val keyBytes = if (checksum) keyLength else 0
    val copied = new Array[Byte](keyBytes + valueLength)
    val start = Platform.BYTE_ARRAY_OFFSET.toLong
    Platform.copyMemory(null, keyAddress, copied, start, keyBytes)
    Platform.copyMemory(null, address, copied, start + keyBytes, valueLength)
    decodeValues(copied, start, keyBytes, start + keyBytes, valueLength)
  }

  private def decodeValues(
      base: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      offset: Long,
      valueLength: Int
  ): Iterator[UnsafeRow] =
    new Iterator[UnsafeRow] {
      private var at = offset
      private val end = offset + valueLength

      override def hasNext: Boolean = at < end

      override def next(): UnsafeRow = {
        if (!hasNext) throw new NoSuchElementException("no more values")
        val size = Platform.getInt(base, at)
        val row = decodeSingle(base, keyOffset, keyLength, at + 4, size)
        at += size + 4
        row
      }
    }

  private def decodeSingle(base: AnyRef, keyOffset: Long, keyLength: Int, offset: Long, length: Int): UnsafeRow = {
    val size = if (checksum) length - 4 else length
    if (checksum) verifier.foreach { verifier =>
      verifier.verify(
        Bytes.copy(base, keyOffset, keyLength),
        Some(Bytes.copy(base, offset, size)),
        Platform.getInt(base, offset + size)
      )
    }
    if (rawValues) pointTo(valueColumns, base, offset, size)
    else dataEncoder.decodeValue(Bytes.copy(base, offset, size)).copy()
  }

  private def pointTo(columns: Int, base: AnyRef, offset: Long, length: Int): UnsafeRow = {
    val row = new UnsafeRow(columns)
    row.pointTo(base, offset, length)
    row
  }
}
